// The small layers around the mixers: RMSNorm (with the residual addition before it), SwiGLU, rotary positions.
#pragma once
#include "based/kernels/kernel.h"

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
  DType x_dtype = DType::f32;      // of x and sum (the residual stream may be fp32 where activations are bf16)
  DType dtype = DType::f32;        // of add, deferred, weight and y
  const void* deferred = nullptr;  // [rows, width], dtype: what a norm before this one saw as `add` and did not keep; null: 0
  const void* gate = nullptr;      // [rows, width], dtype; null: none, and there is no backward with one
};

// Gradients of y = rms_norm(s), the same bits for any number of threads.
struct RmsNormBackward {
  RmsNorm forward;                 // x is s; weight and inverse_rms are read; no add
  const void* grad_y = nullptr;    // [rows, width], dtype
  const void* grad_sum = nullptr;  // [rows, width], dtype: what else s has as gradient, added; null: 0
  void* grad_x = nullptr;          // [rows, width], x_dtype; null: not wanted
  void* grad_add = nullptr;      // [rows, width], dtype: the same gradient, for what s was added up from; may be grad_sum; null: not wanted
  float* grad_weight = nullptr;  // [width]
};

// y = h[:, :width] ⊙ SiLU(h[:, width:])
struct Swiglu {
  const void* h = nullptr;  // [rows, 2·width], contiguous
  void* y = nullptr;        // [rows, width], contiguous
  int64_t rows = 0, width = 0;
  DType dtype = DType::f32;
};

struct SwigluBackward {
  Swiglu forward;                // y ignored
  const void* grad_y = nullptr;  // [rows, width]
  void* grad_h = nullptr;        // [rows, 2·width]
};

// Rotates pairs (a, b) of the first `dim` dimensions of each head to (a cos − b sin, a sin + b cos), angle = position·base^(−2i/dim) for
// pair i; the other dimensions are copied. Angles are reduced in double, so they are exact to fp32 at any position.
struct Rotary {
  const void* x = nullptr;            // [tokens, heads, head_dim]
  void* y = nullptr;                  // [tokens, heads, head_dim]; may be x
  const int64_t* position = nullptr;  // [tokens]
  int64_t tokens = 0;
  int64_t x_stride = 0, y_stride = 0;  // elements from one token to the next
  int32_t heads = 0, head_dim = 64;
  int32_t dim = 64;  // even, at most head_dim and 256
  double base = 10000;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + dim/2)
  bool inverse = false;      // rotate back: the gradient
  DType dtype = DType::f32;
};

namespace cpu {
Status rms_norm_forward(const RmsNorm&);
int64_t rms_norm_backward_scratch(const RmsNormBackward&);
Status rms_norm_backward(const RmsNormBackward&, void* scratch);
Status swiglu_forward(const Swiglu&);
Status swiglu_backward(const SwigluBackward&);
Status rotary(const Rotary&);
}  // namespace cpu

namespace cuda {
Status rms_norm_forward(const RmsNorm&, Stream);
int64_t rms_norm_backward_scratch(const RmsNormBackward&);
Status rms_norm_backward(const RmsNormBackward&, void* scratch, Stream);
Status swiglu_forward(const Swiglu&, Stream);
Status swiglu_backward(const SwigluBackward&, Stream);
Status rotary(const Rotary&, Stream);
}  // namespace cuda

}  // namespace based::kernels
