// Common code of the forward and the backward of the short convolution.
#pragma once
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/conv/short_conv.h"

namespace based::kernels::cuda::detail {

__device__ __forceinline__ float activate(float x, bool silu) { return silu ? x * sigmoid(x) : x; }

// Returns the row that contains `token`.
__device__ __forceinline__ int64_t find_row(const int64_t* row_start, int64_t rows, int64_t token) {
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

// Input of channel c at `token`. Tokens up to taps − 1 before the row's start are read from the state.
template <typename T>
__device__ __forceinline__ float input_at(const ShortConv& p, const float* state, int64_t row, int64_t start, int64_t token, int64_t c) {
  if (token >= start) return to_float(static_cast<const T*>(p.x)[token * p.x_stride + c]) + element_or_zero<T>(p.x_bias, c);
  if (state == nullptr) return 0.0F;
  return state[(row * p.channels + c) * (p.taps - 1) + p.taps - 1 + token - start];
}

// The last two inputs of a channel of a slot, given its word of ShortConv::recent and its state.
__device__ __forceinline__ float2 recent_inputs(uint32_t word, const float* state) {
  const bool has_older = (word & 0xffff) != kNoRecentInput, has_newer = word >> 16 != kNoRecentInput;
  if (has_older) return {low_float(word), high_float(word)};
  const float2 before = *reinterpret_cast<const float2*>(state);
  return has_newer ? make_float2(before.y, high_float(word)) : before;
}
// The word after the input x, which is a value of bf16.
__device__ __forceinline__ uint32_t next_recent(uint32_t word, float x) { return word >> 16 | pack_bf16(0, x); }

template <typename T>
__device__ __forceinline__ float gate_at(const ShortConv& p, int64_t token, int64_t c) {
  return p.gate == nullptr ? 1.0F : element_or_zero<T>(p.gate, token * p.gate_stride + c) + element_or_zero<T>(p.gate_bias, c);
}

// The streaming kernels go through tokens in order and keep the last inputs in registers. They support 3 or 4 taps. A thread handles
// kStreamBytes of each token.
constexpr int kStreamBytes = 8;
inline bool fits_stream(const void* tokens, int64_t stride, DType dtype) {
  return reinterpret_cast<uintptr_t>(tokens) % kStreamBytes == 0 && stride * dtype_size(dtype) % kStreamBytes == 0;
}
inline bool fits_stream(const ShortConv& p) {
  return (p.taps == 3 || p.taps == 4) && p.channels * dtype_size(p.dtype) % kStreamBytes == 0 && fits_stream(p.x, p.x_stride, p.dtype) &&
         fits_stream(p.gate, p.gate_stride, p.dtype);
}

// Convert packed elements to floats when they are needed.
__device__ __forceinline__ void unpack(uint2 packed, float (&x)[2]) { x[0] = __uint_as_float(packed.x), x[1] = __uint_as_float(packed.y); }
__device__ __forceinline__ void unpack(uint2 packed, float (&x)[4]) {
  x[0] = low_float(packed.x), x[1] = high_float(packed.x), x[2] = low_float(packed.y), x[3] = high_float(packed.y);
}

// A thread's filter. x_bias is folded into the bias of the convolution: Σ_j w_j (x + b) = Σ_j w_j x + b Σ_j w_j. So the inputs are read
// without x_bias.
template <typename T, int kTaps>
struct StreamFilter {
  static constexpr int kCount = kStreamBytes / sizeof(T);
  float weight[kTaps][kCount], bias[kCount];

  __device__ __forceinline__ StreamFilter(const ShortConv& p, int64_t c) {
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

// Loads the kKept inputs before `token`, without x_bias.
template <typename T, int kKept, int kCount>
__device__ __forceinline__ void inputs_before(const ShortConv& p, const float* state, int64_t row, int64_t start, int64_t token, int64_t c,
                                              float (&inputs)[kKept][kCount]) {
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t input = token - kKept + j;
    if (input >= start) {
      load_floats<kCount>(static_cast<const T*>(p.x) + input * p.x_stride + c, inputs[j]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) inputs[j][i] = input_at<T>(p, state, row, start, input, c + i) - element_or_zero<T>(p.x_bias, c + i);
  }
}

}  // namespace based::kernels::cuda::detail
