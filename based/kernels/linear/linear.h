// Linear layer for few rows (decode): y = x·weightᵀ + bias. Each output is one dot product. The order of its additions depends only on `in`
// and the instruction set (on a GPU also on `out`, the number of rows and the GPU). So the bits of a row depend neither on the other rows
// nor on the number of threads. A call reads each weight from memory once; with one row, that reading bounds the time.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct Linear {                  // caller owns all memory; strides count elements from one row to the next
  const void* x = nullptr;       // [rows, in]
  const void* weight = nullptr;  // [out, in]
  const void* bias = nullptr;    // [out], or null
  void* y = nullptr;             // [rows, out]; must not overlap the inputs
  int64_t rows = 0, in = 0, out = 0;
  int64_t x_stride = 0, weight_stride = 0, y_stride = 0;
  DType dtype = DType::f32;    // type of x, weight and bias; products are summed in fp32
  DType y_dtype = DType::f32;  // type of y; sums are rounded once
  bool accumulate = false;     // y += x·weightᵀ + bias (residual stream) instead of y =
  // CUDA: no earlier kernel in the queue writes the weight or the bias, so this kernel may read them while earlier kernels still run.
  bool weight_is_constant = false;
};

namespace cpu {
// Works for any number of rows; above about 64 rows a blocked matrix product is faster.
Status linear(const Linear&);
}  // namespace cpu

namespace cuda {
// Maximum number of rows that a kernel supports.
constexpr int64_t most_linear_rows(bool weight_is_constant) { return weight_is_constant ? 512 : 128; }
// Rows must be multiples of 16 bytes and aligned to 16 bytes. Supported: up to 4 rows; in bf16 on Hopper up to 32 rows, up to 128 if
// out ≤ 8192, and up to most_linear_rows if ⌈rows / 256⌉·⌈out / 128⌉ is at most the number of multiprocessors. Beyond that cuBLAS is
// faster.
bool linear_supports(const Linear&);
Status linear(const Linear&, Queue);
// y [rows, out / 2] = the first half of the outputs times the SiLU of the second half. One row, with the types and alignment above; in bf16
// on Hopper as many rows as above, if out is a multiple of 16.
bool linear_swiglu_supports(const Linear&);
Status linear_swiglu(const Linear&, Queue);
}  // namespace cuda

// A device's launchers, as above. The CPU supports every layer, and has no kernel with SwiGLU: null.
struct LinearLaunchers {
  bool (*supports)(const Linear&);
  Status (*forward)(const Linear&, Queue);
  bool (*swiglu_supports)(const Linear&) = nullptr;
  Status (*swiglu)(const Linear&, Queue) = nullptr;
};

}  // namespace based::kernels
