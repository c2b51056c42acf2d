// Elementwise functions with per-column factors. A column is computed in the same way in every row, so a row's bits depend only on the row.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// x·sigmoid(x), 1 / (1 + e^−x), log(1 + e^x), e^x, −log(1 + e^−x), elu(x) + 1: x + 1 above 0, e^x below
enum class Activation : uint8_t { silu, sigmoid, softplus, exp, log_sigmoid, elu_plus_one };

// y = scale · e^log_rate · function(x + bias)
struct Activate {                  // caller owns all memory
  const void* x = nullptr;         // [rows, width]; the elements of a row are contiguous
  void* y = nullptr;               // [rows, width], contiguous; may be x
  const void* bias = nullptr;      // [width], factor_dtype; null: 0
  const void* log_rate = nullptr;  // [width], factor_dtype; null: 0
  int64_t rows = 0, width = 0;
  int64_t x_stride = 0;                                                       // elements between two rows of x
  DType dtype = DType::f32, y_dtype = DType::f32, factor_dtype = DType::f32;  // the arithmetic is fp32
  Activation function = Activation::silu;
  float scale = 1;
};

namespace cpu {
Status activate(const Activate&);
}  // namespace cpu

namespace cuda {
Status activate(const Activate&, Queue);
}  // namespace cuda

// A device's launcher, as above.
struct ActivationLaunchers {
  Status (*activate)(const Activate&, Queue);
};

}  // namespace based::kernels
