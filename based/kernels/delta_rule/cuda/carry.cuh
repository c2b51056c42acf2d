// A slice of the state, or of its gradient, that a block holds in registers while it processes the chunks of a row.
#pragma once
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"

namespace based::kernels::cuda::detail {

constexpr int kSlice = 32, kSlicePitch = kSlice + 8;  // value channels of a block
// Four warps update the state; four others write the results that are computed from it.
constexpr int kCarryThreads = 2 * kRuleThreads;
constexpr int kHopperSharedMemory = 227 * 1024;  // bytes of a block

// Number of stages of `stage` bytes, at most four, that fit into the shared memory of a Hopper block beside `others` bytes.
constexpr int stages_that_fit(int stage, int others) {
  const int fit = (kHopperSharedMemory - others) / stage;
  return fit > 4 ? 4 : fit;
}
inline int shared_memory_of_block() { return block_shared_memory(); }

// Processes a row's chunks in order, through a pipeline of kCount stages of shared memory. request(chunk, stage) issues a chunk's
// asynchronous copies, begin() runs while the first copies are in flight, and work(chunk, stage) runs once the chunk has arrived. Called by
// all threads of the block, which process the same chunk at a time.
template <int kCount, class Request, class Begin, class Work>
__device__ __forceinline__ void walk_chunks(int64_t chunks, Request&& request, Begin&& begin, Work&& work) {
  const auto prefetch = [&](int64_t chunk, int stage) {
    if (chunk < chunks) request(chunk, stage);
    copy_async_commit();
  };
  for (int i = 0; i < kCount - 1; ++i) prefetch(i, i);
  begin();
  copy_async_wait<kCount - 2>();
  __syncthreads();
  int stage = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    prefetch(chunk + kCount - 1, stage == 0 ? kCount - 1 : stage - 1);  // the stage of the previous chunk
    work(chunk, stage);
    copy_async_wait<kCount - 2>();
    __syncthreads();
    stage = stage + 1 < kCount ? stage + 1 : 0;
  }
}

// The slice of one head of a row. The keys are divided among the warps.
template <int kKeys>
struct CarriedSlice {
  static constexpr int kKeysPerWarp = kKeys / kRuleWarps, kTiles = kKeysPerWarp / 16;
  const GatedDeltaRule& p;
  const int64_t row;
  const int head, column;  // column: the slice's first value channel
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float s[kTiles][kSlice / 8][4];  // the slice's elements of the warp's keys, in mma accumulator layout

  __device__ __forceinline__ CarriedSlice(const GatedDeltaRule& params, int64_t index)
      : p(params),
        row(index / (params.value_dim / kSlice) / params.heads),
        head(static_cast<int>(index / (params.value_dim / kSlice) % params.heads)),
        column(static_cast<int>(index % (params.value_dim / kSlice)) * kSlice) {}

  // Calls visit(s, address) for each pair of neighbouring elements, with its address in states [.., heads, key_dim, value_dim].
  template <class Visit>
  __device__ __forceinline__ void each_pair(float* states, int64_t slot, Visit&& visit) {
    float* const state = states + (slot * p.heads + head) * kKeys * p.value_dim + column + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = warp * kKeysPerWarp + 16 * m + lane / 4 + 8 * half;
          visit(&s[m][n][2 * half], reinterpret_cast<float2*>(state + static_cast<int64_t>(key) * p.value_dim + 8 * n));
        }
      }
    }
  }
  __device__ __forceinline__ void load(const float* states, int64_t slot) {  // null: zeros
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
    if (states == nullptr) return;
    each_pair(const_cast<float*>(states), slot, [](float* to, const float2* at) {
      const float2 x = *at;
      to[0] = x.x, to[1] = x.y;
    });
  }
  __device__ __forceinline__ void store(float* states, int64_t slot) {  // null: not stored
    if (states != nullptr) each_pair(states, slot, [](const float* x, float2* to) { *to = {x[0], x[1]}; });
  }

  // Rounds the slice to bf16 into a tile [key_dim, kSlicePitch]. write_rounded copies the tile to the chunk's state in global memory.
  __device__ __forceinline__ void round(char* tile) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) store_sums(tile, kSlicePitch, warp * kKeysPerWarp + 16 * m, s[m]);
  }
  __device__ __forceinline__ void write_rounded(bf16* states, int64_t number, uint32_t tile, int thread) const {
    store_lines<kSlice, kKeys, kRuleThreads>(states + (number * p.heads + head) * kKeys * p.value_dim + column, p.value_dim, tile,
                                             kSlicePitch, 0, kKeys, thread);
  }

  // The slice's elements of a token in values [tokens, heads, value_dim].
  __device__ __forceinline__ bf16* values_of(void* values, int64_t token) const {
    return static_cast<bf16*>(values) + (token * p.heads + head) * p.value_dim + column;
  }
  __device__ __forceinline__ void request_decays(uint32_t to, const float* decays, int64_t number) const {
    if (const int c = static_cast<int>(threadIdx.x) * 4; c < kKeys)
      copy_async_16(to + c * 4, decays + (number * p.heads + head) * kKeys + c, true);
  }

  __device__ __forceinline__ void scale(const char* decays) {
    const auto* warp_decays = reinterpret_cast<const float*>(decays) + warp * kKeysPerWarp + lane / 4;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float upper = warp_decays[16 * m], lower = warp_decays[16 * m + 8];
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n) s[m][n][0] *= upper, s[m][n][1] *= upper, s[m][n][2] *= lower, s[m][n][3] *= lower;
    }
  }
  // Adds (or subtracts, where kNegative) keysᵀ values of the chunk's 64 tokens.
  template <bool kNegative>
  __device__ __forceinline__ void add(uint32_t keys, uint32_t values) {
#pragma unroll
    for (int t = 0; t < kRuleChunk; t += 16) {
      uint32_t b[kSlice / 16][4];
#pragma unroll
      for (int n = 0; n < kSlice / 16; ++n) load_b_by_k(b[n], values, kSlicePitch, t, 16 * n);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        uint32_t a[4];
        load_a_by_k(a, keys, kKeys + 8, warp * kKeysPerWarp + 16 * m, t);
        if constexpr (kNegative) negate(a);
#pragma unroll
        for (int n = 0; n < kSlice / 16; ++n) add_product(s[m][2 * n], s[m][2 * n + 1], a, b[n]);
      }
    }
  }
};

}  // namespace based::kernels::cuda::detail
