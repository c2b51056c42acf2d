#include "based/ops/linear/gated_mlp.h"

#include "based/ops/linear/linear.h"

namespace based::ops {

void check_gated_mlp(const GatedMlp& in) {
  constexpr const char* op = "gated_mlp";
  const auto& [x, weight_in, weight_out] = in;
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "weight_in", weight_in, x);
  require_shape(op, "weight_in", weight_in, {-1, x.size(1)});
  require(weight_in.size(0) % 2 == 0, op, "weight_in must have an even number of rows, got ", weight_in.size(0));
  require_like(op, "weight_out", weight_out, x);
  require_shape(op, "weight_out", weight_out, {-1, weight_in.size(0) / 2});
}

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

TORCH_LIBRARY_FRAGMENT(based, m) { define<GatedMlp>(m).composite<fallback>().named_reference<reference>(); }

}  // namespace

Tensor gated_mlp(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) { return call(GatedMlp{x, weight_in, weight_out}); }
Tensor gated_mlp_reference(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
  return reference({x, weight_in, weight_out});
}

}  // namespace based::ops
