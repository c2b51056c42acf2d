// LayerNorm, with the residual addition before it.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// y = (s − mean(s)) · rsqrt(variance(s) + eps) · weight + bias over each row, where s = x + add. Sums are fp32.
struct LayerNorm {               // caller owns all memory; rows are contiguous
  const void* x = nullptr;       // [rows, width], x_dtype; null: 0, then add and sum must be given
  const void* add = nullptr;     // [rows, width], dtype; null: 0
  void* sum = nullptr;           // [rows, width], x_dtype: s; may be x itself; null: not stored
  const void* weight = nullptr;  // [width], dtype
  const void* bias = nullptr;    // [width], dtype
  void* y = nullptr;             // [rows, width], dtype; may be x where the types agree
  float* mean = nullptr;         // [rows], for the backward; may be null, together with inverse_std
  float* inverse_std = nullptr;  // [rows], rsqrt(variance(s) + eps)
  int64_t rows = 0, width = 0;
  float eps = 1e-5F;
  DType x_dtype = DType::f32;  // type of x and sum (the residual stream may be fp32 where activations are bf16)
  DType dtype = DType::f32;    // type of add, weight, bias and y
};

// Gradients of y = layer_norm(s); deterministic.
struct LayerNormBackward {
  LayerNorm forward;               // x is s; weight, mean and inverse_std are read; no add
  const void* grad_y = nullptr;    // [rows, width], dtype
  const void* grad_sum = nullptr;  // [rows, width], dtype: gradient of s from its other uses, which is added; null: 0
  void* grad_x = nullptr;          // [rows, width], dtype; may be grad_sum
  float* grad_weight = nullptr;    // [width]
  float* grad_bias = nullptr;      // [width]
};

// A residual layer that consists of a norm alone, followed by the next norm: y = norm2(t), t = s + norm1(s), s = x + add.
struct LayerNormTwice {
  LayerNorm first;   // its y is not stored
  LayerNorm second;  // x and add are not used; sum: t, or null; y: the result. Sizes, eps and types are those of `first`
};

// Gradients of LayerNormTwice from s, from which t is recomputed; deterministic.
struct LayerNormTwiceBackward {
  LayerNorm first, second;         // first.x is s; weights, biases, means and inverse_stds are read
  const void* grad_y = nullptr;    // [rows, width], dtype
  const void* grad_sum = nullptr;  // [rows, width], dtype: gradient of t from its other uses; null: 0
  void* grad_x = nullptr;          // [rows, width], dtype: gradient of s, and so of x and of add; may be grad_sum
  float* grad_weight[2] = {};      // [width] each
  float* grad_bias[2] = {};
};

namespace cuda {
// Whether there is a kernel: width up to 1024; x_dtype is fp32 or equals dtype.
bool layer_norm_supports(int64_t width, DType x_dtype, DType dtype);
Status layer_norm_forward(const LayerNorm&, Queue);
int64_t layer_norm_backward_scratch(const LayerNormBackward&);
Status layer_norm_backward(const LayerNormBackward&, void* scratch, Queue);
// Both norms have the same rows; widths and types as in layer_norm_supports.
Status layer_norm_twice_forward(const LayerNormTwice&, Queue);
int64_t layer_norm_twice_backward_scratch(const LayerNormTwiceBackward&);
Status layer_norm_twice_backward(const LayerNormTwiceBackward&, void* scratch, Queue);
}  // namespace cuda

// A GPU's launchers, as above.
struct LayerNormLaunchers {
  bool (*supports)(int64_t width, DType x_dtype, DType dtype);
  Status (*forward)(const LayerNorm&, Queue);
  int64_t (*backward_scratch)(const LayerNormBackward&);
  Status (*backward)(const LayerNormBackward&, void* scratch, Queue);
  Status (*twice_forward)(const LayerNormTwice&, Queue);
  int64_t (*twice_backward_scratch)(const LayerNormTwiceBackward&);
  Status (*twice_backward)(const LayerNormTwiceBackward&, void* scratch, Queue);
};

}  // namespace based::kernels
