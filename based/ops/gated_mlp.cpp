#include "based/ops/gated_mlp.h"

#include "based/ops/arguments.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "gated_mlp";

// Differentiable by its parts.
Tensor by_parts(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
  check_gated_mlp(x, weight_in, weight_out);
  return ops::linear(linear_swiglu(x, weight_in), weight_out);
}

}  // namespace

void check_gated_mlp(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
  require(at::isFloatingType(x.scalar_type()), kOp, "x must be floating, got ", x.scalar_type());
  require_shape(kOp, "x", x, {-1, -1});
  require_like(kOp, "weight_in", weight_in, x);
  require_shape(kOp, "weight_in", weight_in, {-1, x.size(1)});
  require(weight_in.size(0) % 2 == 0, kOp, "weight_in must have an even number of rows, got ", weight_in.size(0));
  require_like(kOp, "weight_out", weight_out, x);
  require_shape(kOp, "weight_out", weight_out, {-1, weight_in.size(0) / 2});
}

Tensor gated_mlp_reference(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
  check_gated_mlp(x, weight_in, weight_out);
  return linear_reference(linear_swiglu_reference(x, weight_in), weight_out);
}

Tensor gated_mlp(const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
  static const auto op = find_operator<decltype(gated_mlp)>("based::gated_mlp");
  return op.call(x, weight_in, weight_out);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("gated_mlp(Tensor x, Tensor weight_in, Tensor weight_out) -> Tensor");
  m.def("gated_mlp_reference(Tensor x, Tensor weight_in, Tensor weight_out) -> Tensor", gated_mlp_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeImplicitAutograd, m) { m.impl("gated_mlp", by_parts); }

}  // namespace
}  // namespace based::ops
