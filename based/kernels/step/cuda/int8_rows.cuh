// Products of a step program's int8 rows.
#pragma once
#include "based/kernels/linear/cuda/int8.cuh"
#include "based/kernels/step/cuda/thread.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// multiply_rows() for rows of int8. A lane loads 16 consecutive weights of a row with one load and converts them to two operands of 8
// weights each. Lanes of odd rows read neighbouring chunks of 64 weights in swapped order; columns 2, 3, 6 and 7 of B hold x in that order.
template <int kGroups>
__device__ __forceinline__ void multiply_int8_rows(StepThread& t, int rows, int shift) {
  constexpr int kChunks = kGroups / 2;
  const int row = t.lane / 4, quarter = t.lane % 4, odd = row % 2;
  uint64_t x[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int chunk = kChunks > 1 ? (j / 2) ^ (row / 2 % 2) : j / 2;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(&t.shared.x[(t.warp * kChunks + chunk) * 8 + 2 * quarter + j % 2]) + odd;
    x[j] = two_words(words[0], words[2]);
  }
  const uint32_t row_bytes = kGroups * t.threads, row_at = row * row_bytes, swap = kChunks > 1 ? 64 * odd : 0;
  const uint32_t lane_at = t.ring + 64 * kChunks * t.warp + 16 * quarter + swap;  // for even chunks; 2 · swap less for odd ones
  float* sums = t.sums() + row * kStepSumStride + t.warp;
#pragma unroll 1
  for (int first = 0; first < rows; first += kStepTileRows, sums += kStepTileRows * kStepSumStride) {
    const int tile = min(rows - first, kStepTileRows), stages = (tile + (1 << shift) - 1) >> shift;
    t.await_stages(stages);
    uint32_t from[2];  // addresses of rows `row` and `row + 8`
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t in_ring = t.stage_at + min(row_at + i * 8 * row_bytes, (tile - 1) * row_bytes);
      from[i] = lane_at + min(in_ring, in_ring - t.ring_bytes);  // wraps around at the end of the ring
    }
    uint4 ints[2][2];  // double buffer: loads are one chunk before the multiplications
    float d[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk <= kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; chunk < kChunks && i < 2; ++i) ints[chunk % 2][i] = load_shared_16(from[i] + 64 * chunk - chunk % 2 * 2 * swap);
      if (chunk == kChunks - 1) t.release_stages(stages);
#pragma unroll
      for (int j = 0; chunk > 0 && j < 4; ++j) {  // a half of the chunk of each row
        const uint4 all = ints[(chunk - 1) % 2][j % 2];
        const uint32_t low = j < 2 ? all.x : all.z, high = j < 2 ? all.y : all.w;
        const uint4 a =
            make_uint4(low_int8_pair_as_bf16(low), high_int8_pair_as_bf16(low), low_int8_pair_as_bf16(high), high_int8_pair_as_bf16(high));
        mma_16x8x16(d[j % 2], a, x[2 * (chunk - 1) + j / 2]);
      }
    }
    if (quarter == odd) sums[0] = d[0][0] + d[0][3], sums[8 * kStepSumStride] = d[1][0] + d[1][3];
  }
}

}  // namespace based::kernels::cuda::detail
#endif
