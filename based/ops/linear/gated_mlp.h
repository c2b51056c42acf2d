// The gated MLP of a block.
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

// linear(swiglu(linear(x, weight_in)), weight_out): x [rows, in], weight_in [2·width, in], weight_out [out, width] -> [rows, out].
// Differentiable. In bf16 on Hopper the products before and after the activation also compute it and its gradient.
Tensor gated_mlp(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out);
Tensor gated_mlp_reference(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out);

// The operator.
struct GatedMlp {
  const Tensor& x;
  const Tensor& weight_in;
  const Tensor& weight_out;
  BASED_OPERATOR("gated_mlp -> y", x, weight_in, weight_out)
};
// Shapes and types. Throws Error.
void check_gated_mlp(const GatedMlp& in);

}  // namespace based::ops
