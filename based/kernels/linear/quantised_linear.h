// Linear layer with weights in int8 or int4, for few rows (decode): y = x·weightᵀ + bias. Weights are converted in registers, to fp32 on
// the CPU and to bf16, which holds int8 exactly, on a GPU; sums are fp32. Each output is one dot product whose order of additions depends
// only on `in` and the instruction set. So the bits of a row depend neither on the other rows nor on the number of threads. A call reads
// each weight from memory once; with one row, that reading bounds the time.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// int8: one signed byte a weight, one fp32 scale a row. int4: groups of kInt4Group weights along a row, each with a bf16 scale. Byte i of a
// group holds weight i in its low nibble and weight i + 16 in its high nibble, both in two's complement.
enum class WeightForm : uint8_t { int8, int4 };
constexpr int64_t kInt4Group = 32;

struct QuantisedLinear {         // caller owns all memory; rows of the weight and the scale have no gaps
  const void* x = nullptr;       // [rows, in] of y's type
  const void* weight = nullptr;  // int8 [out, in], or int4 [out, in / 2] bytes
  const void* scale = nullptr;   // int8: fp32 [out]; int4: bf16 [out, in / kInt4Group]
  const void* bias = nullptr;    // [out] of y's type, or null
  void* y = nullptr;             // [rows, out]; must not overlap the inputs
  int64_t rows = 0, in = 0, out = 0;
  int64_t x_stride = 0, y_stride = 0;  // elements from one row to the next
  WeightForm form = WeightForm::int8;
  DType dtype = DType::f32;  // type of x, y and the bias; sums are rounded once
  // The rest is read by the CUDA kernel alone.
  bool gated = false;  // y [rows, out / 2] = the first half of the outputs times the SiLU of the second half
  // No earlier kernel in the queue writes the weight, the scale or the bias, so this kernel may read them while earlier kernels still run.
  bool weight_is_constant = false;
};

// Rows of an int8 weight times their scales, as floating numbers.
struct Int8Rows {
  const void* weight = nullptr;  // int8 [rows, in]
  const float* scale = nullptr;  // [rows]
  void* y = nullptr;             // [rows, in]
  int64_t rows = 0, in = 0;
  DType dtype = DType::f32;  // type of y
};

namespace cpu {
// Works for any number of rows; above about 64 rows a blocked matrix product of converted weights is faster. int4: `in` must be a multiple
// of kInt4Group.
Status quantised_linear(const QuantisedLinear&);
}  // namespace cpu

namespace cuda {
// int8 alone, any number of rows. x, weight and y need only the alignment of their elements. The kernel reads each weight once for up to 16
// rows, and again for each further 16. Loads are fast if `in` and x_stride are multiples of 16 and x and the weight are aligned to 16
// bytes.
Status quantised_linear(const QuantisedLinear&, Queue);
Status dequantise(const Int8Rows&, Queue);
}  // namespace cuda

// A GPU's launchers, as above.
struct QuantisedLinearLaunchers {
  Status (*forward)(const QuantisedLinear&, Queue);
  Status (*dequantise)(const Int8Rows&, Queue);
};

}  // namespace based::kernels
