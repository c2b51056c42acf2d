#include "based/ops/linear/gated_mlp.h"

#include "based/ops/linear/linear.h"
#include "based/ops/linear/linear_arguments.h"

namespace based::ops {

void check_gated_mlp(const GatedMlp& in) { check_gated_mlp_tensors(in); }

namespace {

// Differentiable by its parts.
Tensor fallback(const GatedMlp& in) {
  check_gated_mlp(in);
  return ops::linear(linear_swiglu(in.x, in.weight_in), in.weight_out);
}

Tensor reference(const GatedMlp& in) {
  check_gated_mlp(in);
  return linear_reference(linear_swiglu_reference(in.x, in.weight_in), in.weight_out);
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) { define<GatedMlp>(m).composite<fallback>().named_reference<reference>(); }

}  // namespace

Tensor gated_mlp(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) { return call(GatedMlp{x, weight_in, weight_out}); }
Tensor gated_mlp_reference(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
  return reference(GatedMlp{x, weight_in, weight_out});
}

}  // namespace based::ops
