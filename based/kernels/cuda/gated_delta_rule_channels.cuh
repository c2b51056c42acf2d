// A chunk of a head in shared memory whose channels decay each by itself.
#pragma once
#include "based/kernels/cuda/gated_delta_rule.cuh"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda::detail {

constexpr int kBlock = 16, kBlocks = kRuleChunk / kBlock;  // a warp has a block of tokens

// At: kPitch, and the places kQ, kK, kSums, kDecays in bytes.
template <class At>
struct ChannelTile {
  char* const shared;
  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float* sums(int token) const { return floats(At::kSums) + token * At::kPitch; }  // of log2 decays, up to it
  __device__ __forceinline__ float* decays(int token) const { return floats(At::kDecays) + token * At::kPitch; }
  __device__ __forceinline__ uint32_t q(int token) const { return shared_address(shared) + At::kQ + token * At::kPitch * 2; }
  __device__ __forceinline__ uint32_t k(int token) const { return shared_address(shared) + At::kK + token * At::kPitch * 2; }
};

// Decays and their sums, a thread a channel.
template <int kKeys, int kThreads, class Tile>
__device__ __forceinline__ void read_channel_decays(const GatedDeltaRule& p, const ChunkBlock& block, const Tile& tile) {
  const int64_t stride = static_cast<int64_t>(p.heads) * p.decay_dim;
  for (int c = static_cast<int>(threadIdx.x); c < kKeys; c += kThreads) {
    const float* from = p.log_decay != nullptr ? p.log_decay + block.line(p) * p.decay_dim + (p.decay_dim == 1 ? 0 : c) : nullptr;
    float sum = 0;
    for (int begin = 0; begin < kRuleChunk; begin += kBlock) {
      float g[kBlock];
#pragma unroll
      for (int t = 0; t < kBlock; ++t)
        g[t] = from != nullptr && begin + t < block.place.tokens ? log2_decay(from[(begin + t) * stride]) : 0.0F;
#pragma unroll
      for (int t = 0; t < kBlock; ++t) {
        sum += g[t];
        tile.sums(begin + t)[c] = sum, tile.decays(begin + t)[c] = exp2_approx(g[t]);
      }
    }
  }
}

}  // namespace based::kernels::cuda::detail
