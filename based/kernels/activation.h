// Functions of single numbers, applied row by row: a column is computed in the same way in every row, so that a row's bits depend on
// nothing but the row.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

// x·sigmoid(x), 1 / (1 + e^−x), log(1 + e^x), e^x
enum class Activation : uint8_t { silu, sigmoid, softplus, exp };

struct Activate {           // caller owns all memory
  const void* x = nullptr;  // [rows, width], contiguous
  void* y = nullptr;        // [rows, width], contiguous; may be x
  int64_t rows = 0, width = 0;
  DType dtype = DType::f32;  // of x and y; the arithmetic is fp32
  Activation function = Activation::silu;
};

namespace cpu {
Status activate(const Activate&);
}  // namespace cpu

}  // namespace based::kernels
