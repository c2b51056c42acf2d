// What the forward and the backward of the short convolution share.
#pragma once
#include "based/kernels/cuda/vectors.cuh"
#include "based/kernels/short_conv.h"

namespace based::kernels::cuda::detail {

// The row that `token` lies in.
__device__ __forceinline__ int64_t row_of(const int64_t* row_start, int64_t rows, int64_t token) {
  int64_t low = 0, high = rows - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (row_start[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Input of channel c at `token`, which may lie up to taps − 1 before the row's start: there the state has it.
template <typename T>
__device__ __forceinline__ float input_at(const ShortConv& p, const float* state, int64_t row, int64_t start, int64_t token, int64_t c) {
  if (token >= start) return to_float(static_cast<const T*>(p.x)[token * p.x_stride + c]);
  if (state == nullptr) return 0.0F;
  return state[(row * p.channels + c) * (p.taps - 1) + p.taps - 1 + token - start];
}

}  // namespace based::kernels::cuda::detail
