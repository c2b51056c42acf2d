// Shared parts of the two kernels that compute a chunk's gradients. Of the 256 threads, each group of four warps handles half of the
// columns, and each warp of a group 16 tokens.
#pragma once
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"

namespace based::kernels::cuda::detail {

constexpr int kBackThreads = 256, kBackWarps = kBackThreads / 32;
constexpr int kPairTiles = kRuleChunk / 16;  // tiles of 8 columns in a warp's half of a 64 x 64 matrix

// bf16 [kLines, kWidth] in shared memory. A line has 16 bytes of padding, so that eight lines fall into different banks.
template <int kLines, int kWidth>
struct SharedTile {
  static constexpr int kPitch = kWidth + 8;
  bf16 lines[kLines][kPitch];

  __device__ __forceinline__ uint32_t address() const { return shared_address(lines); }
  // Two neighbouring elements.
  __device__ __forceinline__ uint32_t& pair(int line, int column) { return *reinterpret_cast<uint32_t*>(&lines[line][column]); }
  // Requests the copy of the lines from global memory, `stride` apart; lines from `valid_lines` on become zero.
  __device__ __forceinline__ void request(const bf16* from, int64_t stride, int valid_lines) {
    static_assert(kLines % kRuleChunk == 0);
#pragma unroll
    for (int line = 0; line < kLines; line += kRuleChunk)
      request_tile<kWidth, kBackThreads>(address() + line * kPitch * 2, from + line * stride, stride, valid_lines);
  }
};
using ChunkTile = SharedTile<kRuleChunk, kRuleChunk>;

// Tiles of a slice of 64 value channels. With `delta`, v is overwritten by its gradient, and grad_r is the gradient of beta · r, where
// r = v − Sᵀk and S is the decayed state before the chunk.
template <int kKeys, bool kDelta>
struct SliceStorage {
  ChunkTile grad_y, u;
  SharedTile<kKeys, kOutputSlice> state, grad_state;  // before and after the chunk
};
template <int kKeys>
struct SliceStorage<kKeys, true> : SliceStorage<kKeys, false> {
  ChunkTile grad_u, v, grad_r;
};

// The products of delta_rule.cuh of tiles in shared memory.
template <int kTiles, class A, class B>
__device__ __forceinline__ void add_by_n(float (&sum)[kTiles][4], const A& a, int line, const B& b, int column, int count) {
  add_by_n(sum, a.address(), A::kPitch, line, b.address(), B::kPitch, column, count);
}
template <int kTiles, class A, class B>
__device__ __forceinline__ void add_by_k(float (&sum)[kTiles][4], const A& a, int line, const B& b, int column, int count) {
  add_by_k(sum, a.address(), A::kPitch, line, b.address(), B::kPitch, column, count);
}
template <bool kNegative = false, int kTiles, class A, class B>
__device__ __forceinline__ void add_transposed(float (&sum)[kTiles][4], const A& a, int line, const B& b, int column, int first,
                                               int count) {
  add_transposed<kTiles, kNegative>(sum, a.address(), A::kPitch, line, b.address(), B::kPitch, column, first, count);
}

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
__device__ __forceinline__ void request_slice(const ChunkedBackward& call, const ChunkBlock& block, SliceStorage<kKeys, kDelta>& slice,
                                              int number) {
  const GatedDeltaRule& p = call.forward.params;
  const int column = number * kOutputSlice;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.value_dim, at = block.line(p) * p.value_dim + column;
  const auto request = [&](ChunkTile& tile, const void* tensor) {
    tile.request(static_cast<const bf16*>(tensor) + at, stride, block.range.tokens);
  };
  request(slice.grad_y, call.params.grad_y);
  request(slice.u, kDelta ? p.y : p.v);
  if constexpr (kDelta) request(slice.grad_u, call.grad_u), request(slice.v, p.v);
  const int64_t state = block.at(p) * kKeys * p.value_dim + column;
  slice.state.request(call.forward.states + state, p.value_dim, kRuleChunk);
  slice.grad_state.request(call.grad_states + state, p.value_dim, kRuleChunk);
  copy_async_commit();
}

// Adds a slice's part to the sums.
template <int kKeys, bool kDelta>
__device__ __forceinline__ void add_slice(ChunkSums<kKeys>& sum, const SliceStorage<kKeys, kDelta>& slice, const BackWarp& warp) {
  const int keys = warp.half * kKeys / 2, tokens = warp.half * kRuleChunk / 2;
  add_by_n(sum.q, slice.grad_y, warp.line, slice.state, keys, kOutputSlice);
  add_by_n(sum.k, slice.u, warp.line, slice.grad_state, keys, kOutputSlice);
  add_by_n(sum.scores, slice.grad_y, warp.line, slice.u, tokens, kOutputSlice);
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
