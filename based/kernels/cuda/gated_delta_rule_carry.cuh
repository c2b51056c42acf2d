// A slice of the state, or of its gradient, that a block carries over the chunks of a row in registers.
#pragma once
#include "based/kernels/cuda/gated_delta_rule.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda::detail {

constexpr int kSlice = 32, kSlicePitch = kSlice + 8;  // value channels of a block
// Four warps carry the state; four others write what is made of it.
constexpr int kCarryThreads = 2 * kRuleThreads;
constexpr int kHopperSharedMemory = 227 * 1024;  // of a block

// Stages of `stage` bytes beside `others` that a block of Hopper has shared memory for, at most four.
constexpr int stages_that_fit(int stage, int others) {
  const int fit = (kHopperSharedMemory - others) / stage;
  return fit > 4 ? 4 : fit;
}
inline int shared_memory_of_block() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

// A row's chunks, in turn, through kCount stages of shared memory: request(chunk, stage) asks for one by asynchronous copies, begin() is
// done while the first are under way, work(chunk, stage) when the chunk is there. All of the block's threads call it, and each is at the
// same chunk as the others.
template <int kCount, class Request, class Begin, class Work>
__device__ __forceinline__ void walk_chunks(int64_t chunks, Request&& request, Begin&& begin, Work&& work) {
  const auto ask = [&](int64_t chunk, int stage) {
    if (chunk < chunks) request(chunk, stage);
    copy_async_commit();
  };
  for (int i = 0; i < kCount - 1; ++i) ask(i, i);
  begin();
  copy_async_wait<kCount - 2>();
  __syncthreads();
  int stage = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    ask(chunk + kCount - 1, stage == 0 ? kCount - 1 : stage - 1);  // where the chunk before this one was
    work(chunk, stage);
    copy_async_wait<kCount - 2>();
    __syncthreads();
    stage = stage + 1 < kCount ? stage + 1 : 0;
  }
}

// Of a row's head. The warps share the keys.
template <int kKeys>
struct CarriedSlice {
  static constexpr int kOfWarp = kKeys / kRuleWarps, kTiles = kOfWarp / 16;
  const GatedDeltaRule& p;
  const int64_t row;
  const int head, column;  // first of the slice
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float s[kTiles][kSlice / 8][4];  // of the warp's keys

  __device__ __forceinline__ CarriedSlice(const GatedDeltaRule& of, int64_t index)
      : p(of),
        row(index / (of.value_dim / kSlice) / of.heads),
        head(static_cast<int>(index / (of.value_dim / kSlice) % of.heads)),
        column(static_cast<int>(index % (of.value_dim / kSlice)) * kSlice) {}

  // visit(s, place) for the pairs of neighbours in states [.., heads, key_dim, value_dim].
  template <class Visit>
  __device__ __forceinline__ void each_pair(float* states, int64_t slot, Visit&& visit) {
    float* const state = states + (slot * p.heads + head) * kKeys * p.value_dim + column + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = warp * kOfWarp + 16 * m + lane / 4 + 8 * half;
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
  __device__ __forceinline__ void store(float* states, int64_t slot) {  // null: nowhere
    if (states != nullptr) each_pair(states, slot, [](const float* x, float2* to) { *to = {x[0], x[1]}; });
  }

  // As bf16 into a tile [key_dim, kSlicePitch], and from there to the chunk's place.
  __device__ __forceinline__ void round(char* tile) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) store_sums(tile, kSlicePitch, warp * kOfWarp + 16 * m, s[m]);
  }
  __device__ __forceinline__ void write_rounded(bf16* states, int64_t number, uint32_t tile, int thread) const {
    store_lines<kSlice, kKeys, kRuleThreads>(states + (number * p.heads + head) * kKeys * p.value_dim + column, p.value_dim, tile,
                                             kSlicePitch, 0, kKeys, thread);
  }

  // Of [tokens, heads, value_dim].
  __device__ __forceinline__ bf16* values_of(void* values, int64_t token) const {
    return static_cast<bf16*>(values) + (token * p.heads + head) * p.value_dim + column;
  }
  __device__ __forceinline__ void request_decays(uint32_t to, const float* decays, int64_t number) const {
    if (const int c = static_cast<int>(threadIdx.x) * 4; c < kKeys)
      copy_async_16(to + c * 4, decays + (number * p.heads + head) * kKeys + c, true);
  }

  __device__ __forceinline__ void scale(const char* decays) {
    const auto* of_warp = reinterpret_cast<const float*>(decays) + warp * kOfWarp + lane / 4;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float upper = of_warp[16 * m], lower = of_warp[16 * m + 8];
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n) s[m][n][0] *= upper, s[m][n][1] *= upper, s[m][n][2] *= lower, s[m][n][3] *= lower;
    }
  }
  // keysᵀ values of the chunk's 64 tokens more, or less.
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
        load_a_by_k(a, keys, kKeys + 8, warp * kOfWarp + 16 * m, t);
        if constexpr (kNegative) negate(a);
#pragma unroll
        for (int n = 0; n < kSlice / 16; ++n) add_product(s[m][2 * n], s[m][2 * n + 1], a, b[n]);
      }
    }
  }
};

}  // namespace based::kernels::cuda::detail
