// A chunk of a head in shared memory whose channels decay each by itself.
#pragma once
#include "based/kernels/cuda/gated_delta_rule.cuh"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda::detail {

constexpr int kBlock = 16, kBlocks = kRuleChunk / kBlock;  // a warp has a block of tokens

// At: kPitch, and the places kQ, kK, kSums in bytes.
template <class At>
struct ChannelTile {
  char* const shared;
  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float* sums(int token) const { return floats(At::kSums) + token * At::kPitch; }  // of log2 decays, up to it
  __device__ __forceinline__ uint32_t q(int token) const { return shared_address(shared) + At::kQ + token * At::kPitch * 2; }
  __device__ __forceinline__ uint32_t k(int token) const { return shared_address(shared) + At::kK + token * At::kPitch * 2; }
};

// Sums of log2 decays up to each token. A channel has kThreads / kKeys threads, whose tokens' gates are read at once; `parts` holds
// kThreads floats, and serves until the block's next barrier. visit(token, c, log2 decay).
template <int kKeys, int kThreads, class Tile, class Visit>
__device__ __forceinline__ void read_channel_decays(const GatedDeltaRule& p, const ChunkBlock& block, const Tile& tile, float* parts,
                                                    Visit&& visit) {
  constexpr int kParts = kThreads / kKeys, kTokens = kRuleChunk / kParts;
  const int c = static_cast<int>(threadIdx.x) % kKeys, part = static_cast<int>(threadIdx.x) / kKeys, begin = part * kTokens;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.decay_dim;
  const float* from = p.log_decay != nullptr ? p.log_decay + block.line(p) * p.decay_dim + (p.decay_dim == 1 ? 0 : c) : nullptr;
  float sums[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    sums[t] = from != nullptr && begin + t < block.place.tokens ? log2_decay(from[(begin + t) * stride]) : 0.0F;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    visit(begin + t, c, sums[t]);
    if (t > 0) sums[t] += sums[t - 1];
  }
  parts[threadIdx.x] = sums[kTokens - 1];
  __syncthreads();
  float before = 0;
  for (int other = 0; other < part; ++other) before += parts[other * kKeys + c];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) tile.sums(begin + t)[c] = before + sums[t];
}

}  // namespace based::kernels::cuda::detail
