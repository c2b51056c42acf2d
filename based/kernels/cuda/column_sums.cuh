// Sums of the columns of a matrix of partial sums, the same bits every time.
#pragma once
#include "based/kernels/cuda/device.cuh"

namespace based::kernels::cuda::detail {

constexpr int kSumColumns = 32;  // columns a block adds up: a warp reads their neighbouring elements of one part after another
constexpr int kSumWarps = 32;
constexpr int kSumAhead = 12;  // elements on the way at a time, the last ones too: with few columns a sum is a row of waits
constexpr int kSumThreads = 32 * kSumWarps;

// Σ over parts of partial[part][column] for column blockIdx.x · kSumColumns + warp, in every lane; 0 past the last column.
// For a block of kSumThreads.
__device__ __forceinline__ float sum_column_of_warp(const float* partial, int64_t parts, int64_t columns) {
  __shared__ float shared[kSumWarps][kSumColumns + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + lane;
  float sum = 0;
  if (column < columns) {
    for (int64_t begin = warp; begin < parts; begin += kSumAhead * kSumWarps) {
      float ahead[kSumAhead];
#pragma unroll
      for (int i = 0; i < kSumAhead; ++i) {
        const int64_t part = begin + i * kSumWarps;
        ahead[i] = part < parts ? partial[part * columns + column] : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < kSumAhead; ++i) sum += ahead[i];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  sum = shared[lane][warp];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  return sum;
}

}  // namespace based::kernels::cuda::detail
