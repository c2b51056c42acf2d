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

template <typename T>
__device__ __forceinline__ float element_or_zero(const void* p, int64_t i) {
  return p != nullptr ? to_float(static_cast<const T*>(p)[i]) : 0.0F;
}

// Input of channel c at `token`, which may lie up to taps − 1 before the row's start: there the state has it.
template <typename T>
__device__ __forceinline__ float input_at(const ShortConv& p, const float* state, int64_t row, int64_t start, int64_t token, int64_t c) {
  if (token >= start) return to_float(static_cast<const T*>(p.x)[token * p.x_stride + c]) + element_or_zero<T>(p.x_bias, c);
  if (state == nullptr) return 0.0F;
  return state[(row * p.channels + c) * (p.taps - 1) + p.taps - 1 + token - start];
}

template <typename T>
__device__ __forceinline__ float gate_at(const ShortConv& p, int64_t token, int64_t c) {
  return p.gate == nullptr ? 1.0F : element_or_zero<T>(p.gate, token * p.gate_stride + c) + element_or_zero<T>(p.gate_bias, c);
}

// Kernels that walk along tokens with the last inputs in registers: for 3 or 4 taps, kWalkBytes of a token a thread.
constexpr int kWalkBytes = 8;
inline bool fits_walk(const void* tokens, int64_t stride, DType dtype) {
  return reinterpret_cast<uintptr_t>(tokens) % kWalkBytes == 0 && stride * dtype_size(dtype) % kWalkBytes == 0;
}
inline bool fits_walk(const ShortConv& p) {
  return (p.taps == 3 || p.taps == 4) && p.channels * dtype_size(p.dtype) % kWalkBytes == 0 && fits_walk(p.x, p.x_stride, p.dtype) &&
         fits_walk(p.gate, p.gate_stride, p.dtype);
}

// Elements stay packed until they are needed.
__device__ __forceinline__ void unpack(uint2 packed, float (&to)[2]) {
  to[0] = __uint_as_float(packed.x), to[1] = __uint_as_float(packed.y);
}
__device__ __forceinline__ void unpack(uint2 packed, float (&to)[4]) {
  to[0] = low_float(packed.x), to[1] = high_float(packed.x), to[2] = low_float(packed.y), to[3] = high_float(packed.y);
}

// A thread's filter. Its inputs lack x's bias, which is in the convolution's instead: Σ_j w_j (x + b) = Σ_j w_j x + b Σ_j w_j.
template <typename T, int kTaps>
struct WalkFilter {
  static constexpr int kCount = kWalkBytes / sizeof(T);
  float weight[kTaps][kCount], bias[kCount];

  __device__ __forceinline__ WalkFilter(const ShortConv& p, int64_t c) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      bias[i] = element_or_zero<T>(p.bias, c + i);
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        weight[j][i] = to_float(static_cast<const T*>(p.weight)[(c + i) * kTaps + j]);
        bias[i] = fmaf(weight[j][i], element_or_zero<T>(p.x_bias, c + i), bias[i]);
      }
    }
  }
};

// The inputs before `token`, without x's bias.
template <typename T, int kKept, int kCount>
__device__ __forceinline__ void inputs_before(const ShortConv& p, const float* state, int64_t row, int64_t start, int64_t token, int64_t c,
                                              float (&to)[kKept][kCount]) {
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t at = token - kKept + j;
    if (at >= start) {
      load_floats<kCount>(static_cast<const T*>(p.x) + at * p.x_stride + c, to[j]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[j][i] = input_at<T>(p, state, row, start, at, c + i) - element_or_zero<T>(p.x_bias, c + i);
  }
}

}  // namespace based::kernels::cuda::detail
