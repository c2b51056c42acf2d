// LayerNorm, with the residual addition before it.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

// y = (s − mean(s)) · rsqrt(variance(s) + eps) · weight + bias over each row, where s = x + add. Sums are fp32.
struct LayerNorm {               // caller owns all memory; rows are contiguous
  const void* x = nullptr;       // [rows, width], x_dtype; null: 0, where there are add and sum
  const void* add = nullptr;     // [rows, width], dtype; null: 0
  void* sum = nullptr;           // [rows, width], x_dtype: s; may be x itself; null: not kept
  const void* weight = nullptr;  // [width], dtype
  const void* bias = nullptr;    // [width], dtype
  void* y = nullptr;             // [rows, width], dtype; may be x where the types agree
  float* mean = nullptr;         // [rows], kept for the backward; may be null, together with inverse_std
  float* inverse_std = nullptr;  // [rows], rsqrt(variance(s) + eps)
  int64_t rows = 0, width = 0;
  float eps = 1e-5F;
  DType x_dtype = DType::f32;  // of x and sum (the residual stream may be fp32 where activations are bf16)
  DType dtype = DType::f32;    // of add, weight, bias and y
};

// Gradients of y = layer_norm(s), the same bits every time.
struct LayerNormBackward {
  LayerNorm forward;               // x is s; weight, mean and inverse_std are read; no add
  const void* grad_y = nullptr;    // [rows, width], dtype
  const void* grad_sum = nullptr;  // [rows, width], dtype: what else s has as gradient, added; null: 0
  void* grad_x = nullptr;          // [rows, width], dtype; may be grad_sum
  float* grad_weight = nullptr;    // [width]
  float* grad_bias = nullptr;      // [width]
};

// The norm of s = x + add is added to s again, and that sum's norm is the result: a residual layer that is a norm alone, and the norm
// behind it.
struct LayerNormTwice {
  LayerNorm first;   // its y is kept nowhere
  LayerNorm second;  // no x and no add; sum: s + the first norm, or null; y is the result. Sizes, eps and types are the first one's
};

// Its gradients from s, out of which the second sum is computed again. The same bits every time.
struct LayerNormTwiceBackward {
  LayerNorm first, second;         // x of the first is s; weights, biases, means and inverse_stds are read
  const void* grad_y = nullptr;    // [rows, width], dtype
  const void* grad_sum = nullptr;  // [rows, width], dtype: what else the second sum has as gradient; null: 0
  void* grad_x = nullptr;          // [rows, width], dtype: of s, of x and of add; may be grad_sum
  float* grad_weight[2] = {};      // [width] each
  float* grad_bias[2] = {};
};

namespace cuda {
// Rows of up to 1024, x_dtype fp32 or that of the others.
bool layer_norm_supports(int64_t width, DType x_dtype, DType dtype);
Status layer_norm_forward(const LayerNorm&, Stream);
int64_t layer_norm_backward_scratch(const LayerNormBackward&);
Status layer_norm_backward(const LayerNormBackward&, void* scratch, Stream);
// Of the same rows.
Status layer_norm_twice_forward(const LayerNormTwice&, Stream);
int64_t layer_norm_twice_backward_scratch(const LayerNormTwiceBackward&);
Status layer_norm_twice_backward(const LayerNormTwiceBackward&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
