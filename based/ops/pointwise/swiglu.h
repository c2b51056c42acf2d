// SwiGLU, the gate of an MLP.
#pragma once
#include "based/ops/framework/operator.h"

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

}  // namespace based::ops
