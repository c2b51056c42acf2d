// Column sums of a matrix of partial sums; deterministic.
#pragma once
#include "based/kernels/common/cuda/device.cuh"

namespace based::kernels::cuda::detail {

constexpr int kSumColumns = 32;  // columns of a block, a column a lane: a warp reads adjacent elements
constexpr int kSumWarps = 32;
constexpr int kSumUnroll = 12;  // loads in flight, also in the last iteration: with few columns the time is that of the load latencies
constexpr int kSumThreads = 32 * kSumWarps;

// Σ over parts of partial[part][column] for column blockIdx.x · kSumColumns + warp, in every lane; 0 past the last column.
// The block must have kSumThreads threads.
__device__ __forceinline__ float sum_column_of_warp(const float* partial, int64_t parts, int64_t columns) {
  __shared__ float shared[kSumWarps][kSumColumns + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + lane;
  float sum = 0;
  if (column < columns) {
    for (int64_t begin = warp; begin < parts; begin += kSumUnroll * kSumWarps) {
      float loaded[kSumUnroll];
#pragma unroll
      for (int i = 0; i < kSumUnroll; ++i) {
        const int64_t part = begin + i * kSumWarps;
        loaded[i] = part < parts ? partial[part * columns + column] : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < kSumUnroll; ++i) sum += loaded[i];
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
