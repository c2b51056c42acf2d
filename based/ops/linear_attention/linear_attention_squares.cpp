#include "based/ops/linear_attention/linear_attention_squares.h"

namespace based::ops {
namespace {

struct Weights {
  Tensor weights;      // divided by the denominator, so that a token's weights add up to sum / (sum + eps)
  Tensor denominator;  // [rows, heads, length, 1], with eps
};
Weights weights_of(const Tensor& q, const Tensor& k, double eps) {
  const Tensor weights = at::matmul(q, k.transpose(-1, -2)).tril(), denominator = weights.sum(-1, /*keepdim=*/true) + eps;
  return {weights / denominator, denominator};
}

// ATen's own gradient reads or writes tensors of the values' and the squares' size some twenty times, this one six times.
struct Squares : torch::autograd::Function<Squares> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& q, const Tensor& k, const Tensor& v, double eps) {
    const auto [weights, denominator] = weights_of(q, k, eps);
    context->save_for_backward({q, k, v, weights, denominator});
    context->saved_data["eps"] = eps;
    return at::matmul(weights, v);
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &grad_y = grads[0];
    // For a gradient of the gradient the weights must be differentiable functions of q and k.
    const auto [weights, denominator] =
        at::GradMode::is_enabled() ? weights_of(q, k, context->saved_data["eps"].toDouble()) : Weights{saved[3], saved[4]};
    const Tensor grad_weights = at::matmul(grad_y, v.transpose(-1, -2)), scale = denominator.reciprocal();
    const Tensor grad_denominator = (grad_weights * weights).sum(-1, /*keepdim=*/true).neg() * scale;
    const Tensor grad_products = at::addcmul(grad_denominator, grad_weights, scale).tril();
    return {
        at::matmul(grad_products, k), at::matmul(grad_products.transpose(-1, -2), q), at::matmul(weights.transpose(-1, -2), grad_y), {}};
  }
};

}  // namespace

Tensor attend_by_squares(const Tensor& q, const Tensor& k, const Tensor& v, double eps) { return Squares::apply(q, k, v, eps); }

}  // namespace based::ops
