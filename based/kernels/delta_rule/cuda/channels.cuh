// A chunk of a head in shared memory, for a decay of each channel.
#pragma once
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"

namespace based::kernels::cuda::detail {

constexpr int kBlock = 16, kBlocks = kRuleChunk / kBlock;  // a warp handles a block of tokens

// At gives kPitch in elements and the offsets kQ, kK and kSums in bytes.
template <class At>
struct ChannelTile {
  char* const shared;
  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float* sums(int token) const {
    return floats(At::kSums) + token * At::kPitch;
  }  // sums of log2 decays up to the token
  __device__ __forceinline__ uint32_t q(int token) const { return shared_address(shared) + At::kQ + token * At::kPitch * 2; }
  __device__ __forceinline__ uint32_t k(int token) const { return shared_address(shared) + At::kK + token * At::kPitch * 2; }
};

// Computes the sums of log2 decays up to each token. Each channel has kThreads / kKeys threads, which load the decays of all their tokens
// at once. `parts` is kThreads floats of shared memory, in use until the block's next barrier. Calls visit(token, c, log2 decay) for each
// token and channel.
template <int kKeys, int kThreads, class Tile, class Visit>
__device__ __forceinline__ void read_channel_decays(const GatedDeltaRule& p, const ChunkBlock& block, Tile&& tile, float* parts,
                                                    Visit&& visit) {
  constexpr int kParts = kThreads / kKeys, kTokens = kRuleChunk / kParts;
  const int c = static_cast<int>(threadIdx.x) % kKeys, part = static_cast<int>(threadIdx.x) / kKeys, begin = part * kTokens;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.decay_dim;
  const float* log_decay = p.log_decay != nullptr ? p.log_decay + block.line(p) * p.decay_dim + (p.decay_dim == 1 ? 0 : c) : nullptr;
  float sums[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    sums[t] = log_decay != nullptr && begin + t < block.range.tokens ? log2_decay(log_decay[(begin + t) * stride]) : 0.0F;
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
