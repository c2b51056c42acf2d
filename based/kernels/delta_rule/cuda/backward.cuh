// Shared parts of the two kernels that compute a chunk's gradients. Of the 256 threads, each group of four warps handles half of the
// columns, and each warp of a group 16 tokens.
#pragma once
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"

namespace based::kernels::cuda::detail {

constexpr int kBackThreads = 256, kBackWarps = kBackThreads / 32;
constexpr int kPairTiles = kRuleChunk / 16;  // tiles of 8 columns in a warp's half of a 64 x 64 matrix

// Byte offsets of the tensors of a slice of 64 value channels in shared memory.
template <int kKeys, bool kDelta>
struct SliceOffsets {
  static constexpr int kTileBytes = kRuleChunk * kScorePitch * 2, kStateBytes = kKeys * kScorePitch * 2;
  static constexpr int kGradY = 0, kU = kTileBytes, kState = 2 * kTileBytes, kGradState = kState + kStateBytes,
                       kGradU = kGradState + kStateBytes, kV = kGradU + kTileBytes, kGradR = kV + kTileBytes,
                       kEnd = kDelta ? kGradR + kTileBytes : kGradU;
};

// The sums over value channels for the warp's tokens and half of the columns.
template <int kKeys>
struct ChunkSums {
  static constexpr int kTiles = kKeys / 16;                                // tiles of 8 keys
  float q[kTiles][4] = {}, k[kTiles][4] = {}, scores[kPairTiles][4] = {};  // grad_y Sᵀ, u grad_Sᵀ, grad_y uᵀ
};

struct BackWarp {
  const int lane = static_cast<int>(threadIdx.x) % 32, block = static_cast<int>(threadIdx.x) / 32 % 4,
            half = static_cast<int>(threadIdx.x) / 128;
  const int line = 16 * block, row = line + lane / 4, column = lane % 4 * 2;  // element i of a sum is at row + i / 2 · 8, column + i % 2
};

template <int kKeys, bool kDelta>
__device__ __forceinline__ void request_slice(const ChunkedBackward& call, const ChunkBlock& block, uint32_t to, int slice) {
  using At = SliceOffsets<kKeys, kDelta>;
  const GatedDeltaRule& p = call.forward.params;
  const int lines = block.range.tokens, column = slice * kOutputSlice;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.value_dim, at = block.line(p) * p.value_dim + column;
  const auto values = [&](int offset, const void* tensor) {
    request_tile<kOutputSlice, kBackThreads>(to + offset, static_cast<const bf16*>(tensor) + at, stride, lines);
  };
  values(At::kGradY, call.params.grad_y);
  values(At::kU, kDelta ? p.y : p.v);
  if constexpr (kDelta) values(At::kGradU, call.grad_u), values(At::kV, p.v);
  for (int key = 0; key < kKeys; key += kRuleChunk) {
    const int64_t line = (block.at(p) * kKeys + key) * p.value_dim + column;
    const uint32_t tile = to + key * kScorePitch * 2;
    request_tile<kOutputSlice, kBackThreads>(tile + At::kState, call.forward.states + line, p.value_dim, kRuleChunk);
    request_tile<kOutputSlice, kBackThreads>(tile + At::kGradState, call.grad_states + line, p.value_dim, kRuleChunk);
  }
  copy_async_commit();
}

// Adds a slice's part to the sums.
template <int kKeys, bool kDelta>
__device__ __forceinline__ void add_slice(ChunkSums<kKeys>& sum, uint32_t slice, const BackWarp& warp) {
  using At = SliceOffsets<kKeys, kDelta>;
  const int keys = warp.half * kKeys / 2, tokens = warp.half * kRuleChunk / 2;
  add_by_n(sum.q, slice + At::kGradY, kScorePitch, warp.line, slice + At::kState, kScorePitch, keys, kOutputSlice);
  add_by_n(sum.k, slice + At::kU, kScorePitch, warp.line, slice + At::kGradState, kScorePitch, keys, kOutputSlice);
  add_by_n(sum.scores, slice + At::kGradY, kScorePitch, warp.line, slice + At::kU, kScorePitch, tokens, kOutputSlice);
}

// Σ S ⊙ grad_S over eight value channels of a key.
__device__ __forceinline__ float state_product(uint32_t state, uint32_t grad_state) {
  const uint4 a = load_shared_16(state), b = load_shared_16(grad_state);
  const auto pair = [](uint32_t x, uint32_t y, float sum) {
    return fmaf(high_float(x), high_float(y), fmaf(low_float(x), low_float(y), sum));
  };
  return pair(a.w, b.w, pair(a.z, b.z, pair(a.y, b.y, pair(a.x, b.x, 0.0F))));
}

}  // namespace based::kernels::cuda::detail
