// Linear layer for few rows (decode): y = x·weightᵀ + bias. Every output is one dot product whose additions happen in an order that depends
// on `in` and the instruction set alone, so a row's result is the same, bit for bit, whatever the other rows and the number of threads are.
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
};

namespace cpu {
// Any number of rows is right; above about 64 a blocked matrix product is faster.
Status linear(const Linear&);
}  // namespace cpu

namespace cuda {
// At most 4 rows, of whole 16 bytes, aligned to them.
bool linear_supports(const Linear&);
Status linear(const Linear&, Stream);
}  // namespace cuda

}  // namespace based::kernels
