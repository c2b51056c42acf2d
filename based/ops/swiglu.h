// SwiGLU, the gate of an MLP.
#pragma once
#include "based/kernels/pointwise.h"
#include "based/ops/operator.h"

namespace based::ops {

// h = [y, gate] (y first), [tokens, 2·width] -> y ⊙ SiLU(gate), [tokens, width]. Differentiable.
Tensor swiglu(const Tensor& h);
Tensor swiglu_reference(const Tensor& h);

// The operators.
struct Swiglu {
  const Tensor& h;
  BASED_OPERATOR("swiglu -> y", h)
};
struct SwigluBackward {
  const Tensor& grad_y;
  const Tensor& h;
  BASED_OPERATOR("swiglu_backward -> grad_h", grad_y, h)
};

// Them with a device's kernels.
struct SwigluKernels {
  kernels::Status (*forward)(const kernels::Swiglu&);
  kernels::Status (*backward)(const kernels::SwigluBackward&);
};
Tensor swiglu_with(const SwigluKernels& table, const Swiglu& in);
Tensor swiglu_backward_with(const SwigluKernels& table, const SwigluBackward& in);

}  // namespace based::ops
