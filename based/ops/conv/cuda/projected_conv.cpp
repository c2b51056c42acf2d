#include "based/ops/conv/projected_conv.h"

#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/linear/cuda/column_sums.h"
#include "based/ops/linear/cuda/library_product.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear/split_columns.h"

namespace based::ops {
namespace {

// The product and the convolution with one gradient for both, since the convolution's kernel computes the gradient of the projection's
// bias. cuBLAS multiplies faster without a bias, so the convolution's kernels add it when they read the product.
struct ProjectedConvFunction : torch::autograd::Function<ProjectedConvFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const Tensor& x, const Tensor& in_weight, const Tensor& in_bias, const Tensor& weight,
                           const OptionalTensor& bias, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor u = linear_by_library(x, in_weight, {});
    const auto halves = u.split(weight.size(0), 1);
    const auto [y, state] = short_conv_with_input_bias({{halves[0], weight, bias, halves[1], true}, cu_seqlens, initial_state}, in_bias);
    context->save_for_backward({x, in_weight, in_bias, u, weight, value_or_undefined(bias), cu_seqlens, value_or_undefined(initial_state)});
    context->set_materialize_grads(false);
    return {y, state};
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &x = saved[0], &in_weight = saved[1], &u = saved[3], &weight = saved[4];
    const c10::DeviceGuard guard(x.device());
    const auto halves = u.split(weight.size(0), 1);
    const Tensor grad_y = grads[0].defined() ? grads[0] : at::zeros_like(halves[0]);
    const bool wants_bias = context->needs_input_grad(2);
    Tensor sums;
    const auto [grad_x, grad_weight, grad_bias, grad_gate, grad_state] = short_conv_backward_with_input_bias(
        {grad_y, if_defined(grads[1]), {{halves[0], weight, if_defined(saved[5]), halves[1], true}, saved[6], if_defined(saved[7])}},
        saved[2], wants_bias ? &sums : nullptr);
    const Tensor grad_u = join_columns({grad_x, grad_gate});
    Variables found{Tensor(), Tensor(), Tensor(), grad_weight, grad_bias, Tensor(), grad_state};
    if (context->needs_input_grad(0)) found[0] = input_gradient_by_library(grad_u, in_weight);
    if (context->needs_input_grad(1)) found[1] = at::matmul(grad_u.t(), x);
    if (wants_bias) found[2] = sums.defined() ? sums.to(x.scalar_type()) : column_sums(grad_u);
    return found;
  }
};

Result<ProjectedConv> projected_conv_autograd(const ProjectedConv& in) {
  const auto& [x, in_weight, in_bias, weight, bias] = in.layer;
  if (!in_bias || !has_kernel(x)) return projected_conv_fallback(in);
  check_projected_conv(in.layer);
  const auto out = ProjectedConvFunction::apply(x, in_weight, *in_bias, weight, bias, in.cu_seqlens, in.initial_state);
  return {out[0], out[1]};
}

Tensor projected_conv_prefill_cuda(const ProjectedConvPrefill& in) {
  const auto& [x, in_weight, in_bias, weight, bias] = in.layer;
  if (!in_bias || !has_kernel(x)) return projected_conv_prefill_fallback(in);
  check_projected_conv(in.layer);
  refuse_gradient(in);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto u = ops::linear(x, in_weight, {}).split(weight.size(0), 1);
  return short_conv_prefill_with_input_bias({{u[0], weight, bias, u[1], true}, in.cu_seqlens, in.state, in.slots}, *in_bias);
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, AutogradCUDA, m) {
  implement<ProjectedConv, projected_conv_autograd>(m);
  implement<ProjectedConvPrefill, projected_conv_prefill_cuda>(m);
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CUDA, m) { implement<ProjectedConvPrefill, projected_conv_prefill_cuda>(m); }

}  // namespace
}  // namespace based::ops
