// Linear layer for few rows (decode): y = x·weightᵀ + bias. Every output is one dot product whose additions happen in an order that depends
// on `in` and the instruction set alone (on a GPU also on `out`, the number of rows and the GPU), so a row's result is the same, bit for
// bit, whatever the other rows hold and the number of threads is.
// Weights are read from memory once a call; with one row the call is as fast as that reading.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct Linear {                  // caller owns all memory; strides count elements from one row to the next
  const void* x = nullptr;       // [rows, in]
  const void* weight = nullptr;  // [out, in]
  const void* bias = nullptr;    // [out], or null
  void* y = nullptr;             // [rows, out]; must not overlap the inputs
  int64_t rows = 0, in = 0, out = 0;
  int64_t x_stride = 0, weight_stride = 0, y_stride = 0;
  DType dtype = DType::f32;    // of x, weight and bias; products are summed in fp32
  DType y_dtype = DType::f32;  // of y; rounded once
  bool accumulate = false;     // y += x·weightᵀ + bias (residual stream) instead of y =
  // CUDA: no kernel queued before this one writes the weight or the bias, so they may be read while it still runs.
  bool weight_is_constant = false;
};

namespace cpu {
// Any number of rows is right; above about 64 a blocked matrix product is faster.
Status linear(const Linear&);
}  // namespace cpu

namespace cuda {
// No layer of more rows has a kernel.
constexpr int64_t most_linear_rows(bool weight_is_constant) { return weight_is_constant ? 512 : 128; }
// Rows of whole 16 bytes, aligned to them: at most 4; in bf16 on Hopper at most 32, at most 128 where out ≤ 8192, and most_linear_rows
// where ⌈rows / 128⌉·⌈out / 64⌉ is at most twice the number of multiprocessors: where cuBLAS is not faster.
bool linear_supports(const Linear&);
Status linear(const Linear&, Stream);
// y [rows, out / 2]: the first half of the outputs times the SiLU of the second. One row, of the types and alignment above; in bf16 on
// Hopper as many rows as above, where 16 divides out.
bool linear_swiglu_supports(const Linear&);
Status linear_swiglu(const Linear&, Stream);
}  // namespace cuda

}  // namespace based::kernels
