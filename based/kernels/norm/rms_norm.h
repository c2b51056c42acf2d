// RMSNorm, with the residual addition before it.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// y = s · rsqrt(mean(s²) + eps) · weight over each row, and times SiLU(gate), where s = (x + deferred) + add. Sums are fp32.
struct RmsNorm {                 // caller owns all memory; rows are contiguous
  const void* x = nullptr;       // [rows, width], x_dtype; null: 0, where there are add and sum
  const void* add = nullptr;     // [rows, width], dtype; null: 0
  void* sum = nullptr;           // [rows, width], x_dtype: s; may be x itself; null: not kept
  const void* weight = nullptr;  // [width], dtype
  void* y = nullptr;             // [rows, width], dtype; may be x where the types agree
  float* inverse_rms = nullptr;  // [rows], rsqrt(mean(s²) + eps); kept for the backward; may be null
  int64_t rows = 0, width = 0;
  float eps = 1e-5F;
  DType x_dtype = DType::f32;      // x and sum have this type (the residual stream may be fp32 where activations are bf16)
  DType dtype = DType::f32;        // add, deferred, weight and y have this type
  const void* deferred = nullptr;  // [rows, width], dtype: the `add` of an earlier norm that did not write its sum; null: 0
  const void* gate = nullptr;      // [rows, width], dtype; null: none, and there is no backward with one
};

// Gradients of y = rms_norm(s), the same bits for any number of threads.
struct RmsNormBackward {
  RmsNorm forward;                 // x is s; weight and inverse_rms are read; no add
  const void* grad_y = nullptr;    // [rows, width], dtype
  const void* grad_sum = nullptr;  // [rows, width], dtype: the rest of s's gradient, added; null: 0
  void* grad_x = nullptr;          // [rows, width], x_dtype; null: not wanted
  void* grad_add = nullptr;        // [rows, width], dtype: the same gradient, for the terms of s; may be grad_sum; null: not wanted
  float* grad_weight = nullptr;    // [width]
};

namespace cpu {
Status rms_norm_forward(const RmsNorm&);
int64_t rms_norm_backward_scratch(const RmsNormBackward&);  // bytes
Status rms_norm_backward(const RmsNormBackward&, void* scratch);
}  // namespace cpu

namespace cuda {
constexpr int64_t kRmsNormMostWidth = 8192;

Status rms_norm_forward(const RmsNorm&, Queue);
int64_t rms_norm_backward_scratch(const RmsNormBackward&);  // bytes
Status rms_norm_backward(const RmsNormBackward&, void* scratch, Queue);
}  // namespace cuda

// A device's launchers, as above.
struct RmsNormLaunchers {
  Status (*forward)(const RmsNorm&, Queue);
  int64_t (*backward_scratch)(const RmsNormBackward&);
  Status (*backward)(const RmsNormBackward&, void* scratch, Queue);
  int64_t max_width;
};

}  // namespace based::kernels
