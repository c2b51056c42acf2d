// The hidden layer of a gated MLP, y = swiglu(x·weight_inᵀ)·weight_outᵀ with swiglu([u, gate]) = u ⊙ SiLU(gate), and its gradient. Both are
// bf16 matrix products of many rows with fp32 sums. The activation, or its gradient, is applied to the sums in registers.
#pragma once
#include "based/kernels/common/kernel.h"

namespace based::kernels {

struct GatedHidden {             // caller owns all memory; all rows contiguous
  const void* x = nullptr;       // [rows, in]
  const void* weight = nullptr;  // [2·width, in]
  void* h = nullptr;             // [rows, 2·width]: x·weightᵀ = [u, gate], or null if the caller does not need it
  void* y = nullptr;             // [rows, width]: swiglu of the rounded h
  int64_t rows = 0, in = 0, width = 0;
};

struct GatedHiddenBackward {     // caller owns all memory; all rows contiguous
  const void* grad_y = nullptr;  // [rows, out], gradient of swiglu(h)·weightᵀ
  const void* weight = nullptr;  // [out, width]
  const void* h = nullptr;       // [rows, 2·width]
  void* grad_h = nullptr;        // [rows, 2·width]
  int64_t rows = 0, out = 0, width = 0;
};

namespace cuda {
// Hopper only. Pointers and row lengths must be multiples of 16 bytes, and width a multiple of 128 (backward: 256).
bool gated_hidden_supports(const GatedHidden&);
Status gated_hidden(const GatedHidden&, Queue);
bool gated_hidden_backward_supports(const GatedHiddenBackward&);
Status gated_hidden_backward(const GatedHiddenBackward&, Queue);
}  // namespace cuda

}  // namespace based::kernels
