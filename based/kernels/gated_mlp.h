// The hidden layer of a gated MLP, y = swiglu(x·weight_inᵀ)·weight_outᵀ with swiglu([u, gate]) = u ⊙ SiLU(gate), and its gradient: products
// of many rows in bf16 with fp32 sums, which become the activation, or its gradient, while they are in registers.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct GatedHidden {             // caller owns all memory; all rows contiguous
  const void* x = nullptr;       // [rows, in]
  const void* weight = nullptr;  // [2·width, in]
  void* h = nullptr;             // [rows, 2·width]: x·weightᵀ = [u, gate], or null where nobody wants it
  void* y = nullptr;             // [rows, width]: swiglu of the rounded h
  int64_t rows = 0, in = 0, width = 0;
};

struct GatedHiddenBackward {     // caller owns all memory; all rows contiguous
  const void* grad_y = nullptr;  // [rows, out]: of swiglu(h)·weightᵀ
  const void* weight = nullptr;  // [out, width]
  const void* h = nullptr;       // [rows, 2·width]
  void* grad_h = nullptr;        // [rows, 2·width]
  int64_t rows = 0, out = 0, width = 0;
};

namespace cuda {
// On Hopper: pointers and rows of whole 16 bytes, width a multiple of 128, in the backward of 256.
bool gated_hidden_supports(const GatedHidden&);
Status gated_hidden(const GatedHidden&, Stream);
bool gated_hidden_backward_supports(const GatedHiddenBackward&);
Status gated_hidden_backward(const GatedHiddenBackward&, Stream);
}  // namespace cuda

}  // namespace based::kernels
