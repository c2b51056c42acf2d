// The gradient of the filter of pairs whose weight is filter[i − j] s_ij: sums over the diagonals of products that the warps of
// query_gradients() compute. A warp owns 16 queries, from `first` on, and reads tiles of 32 keys, from `key` on, with rising keys. A tile
// has the distances first − key − 31 .. first − key + 15. The next one has none above first − key − 17, so a tile completes the 32
// distances from first − key − 16 on, for which each lane writes one sum, and keeps the lower 15 for the next tile. Nothing is added by two
// warps, and every order is fixed.
#pragma once
#include "based/kernels/pair_attention/cuda/pair_attention.cuh"

namespace based::kernels::cuda::detail::pairs {

// The parts of a row and head: for each group of 16 queries the sums of its tiles, 32 for each.
__host__ __device__ constexpr int64_t filter_tiles_before(int64_t group) { return (group / 2 + group % 2) * (group / 2 + 1); }
__host__ __device__ constexpr int64_t filter_groups(int64_t length) { return (length + 15) / 16; }
__host__ __device__ constexpr int64_t filter_row_floats(int64_t length) { return filter_tiles_before(filter_groups(length)) * kOther; }
__device__ __forceinline__ int64_t filter_part_offset(int64_t row_and_head, int length, int first) {
  return row_and_head * filter_row_floats(length) + filter_tiles_before(first / 16) * kOther;
}

template <bool kEnabled>
struct DiagonalSums {
  static constexpr int kPitch = 65;  // so that lanes which read sums of one row in different groups of 8 distances use different banks
  static constexpr int kFloats = kEnabled ? 5 * kPitch : 1;

  float* memory;   // kFloats numbers that belong to the warp
  float kept = 0;  // lanes 17 .. 31: the previous tiles' sum of the distance that add() returns next in this lane
  __device__ __forceinline__ explicit DiagonalSums(float* memory) : memory(memory) {}

  // Adds a tile; returns the complete sum of the distance first − key − 16 + lane.
  __device__ __forceinline__ float add(const Sums<kBlocks>& products) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // A lane's pairs with the same e / 2 − n and the same e % 2 have the same distance.
    float sums[5][2] = {};
#pragma unroll
    for (int i = 0; i < 4 * kBlocks; ++i) sums[i % 4 / 2 - i / 4 + 3][i % 2] += products[i / 4][i % 4];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 5; ++i) memory[i * kPitch + lane] = sums[i][0], memory[i * kPitch + 32 + lane] = sums[i][1];
    __syncwarp();
    const float complete = kept + diagonal(lane - 16), open = diagonal(lane - 48);
    kept = lane > 16 ? open : 0.0F;
    return complete;
  }

 private:
  // The tile's sum of the pairs with the distance first − key + d, −31 ≤ d ≤ 15; 0 below.
  __device__ __forceinline__ float diagonal(int d) const {
    float sum = 0;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int from = d + odd + 24;  // 8 i + row − column of the lanes that have the distance, −8 < row − column < 8
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int row = (from & 7) + 2 * pair, i = (from >> 3) + row / 8;
        if (static_cast<uint32_t>(i) < 5) sum += memory[i * kPitch + 32 * odd + row % 8 * 4 + pair];
      }
    }
    return sum;
  }
};

}  // namespace based::kernels::cuda::detail::pairs
