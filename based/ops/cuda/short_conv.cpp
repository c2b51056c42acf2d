#include "based/ops/short_conv.h"

#include "based/ops/cuda/column_sums.h"
#include "based/ops/cuda/library_product.h"
#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"
#include "based/ops/projected_conv.h"
#include "based/ops/split_columns.h"

namespace based::ops {
namespace {

const ShortConvKernels kCuda{launch<kernels::cuda::short_conv_forward, kernels::ShortConv>, kernels::cuda::short_conv_backward_scratch,
                             launch_with_scratch<kernels::cuda::short_conv_backward, kernels::ShortConvBackward>,
                             launch<kernels::cuda::short_conv_step, kernels::ShortConv>, kernels::cuda::short_conv_backward_sums};

std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                                   const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  const OnDevice device(
      "short_conv",
      {{"x", x}, {"weight", weight}, {"bias", bias}, {"gate", gate}, {"cu_seqlens", cu_seqlens}, {"initial_state", initial_state}});
  return short_conv_with(kCuda, {x, weight, bias, gate, silu}, cu_seqlens, initial_state);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x,
                                                            const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate,
                                                            bool silu, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  const OnDevice device("short_conv_backward", {{"grad_y", grad_y},
                                                {"grad_state", grad_state},
                                                {"x", x},
                                                {"weight", weight},
                                                {"bias", bias},
                                                {"gate", gate},
                                                {"cu_seqlens", cu_seqlens},
                                                {"initial_state", initial_state}});
  return short_conv_backward_with(kCuda, grad_y, grad_state, {x, weight, bias, gate, silu}, cu_seqlens, initial_state);
}

Tensor prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
               const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  const OnDevice device(
      "short_conv_prefill",
      {{"x", x}, {"weight", weight}, {"bias", bias}, {"gate", gate}, {"cu_seqlens", cu_seqlens}, {"state", state}, {"slots", slots}});
  return short_conv_prefill_with(kCuda, {x, weight, bias, gate, silu}, cu_seqlens, state, slots);
}

Tensor step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu, Tensor state,
            const Tensor& slots) {
  const OnDevice device("short_conv_step",
                        {{"x", x}, {"weight", weight}, {"bias", bias}, {"gate", gate}, {"state", state}, {"slots", slots}});
  return short_conv_step_with(kCuda, x, weight, bias, gate, silu, state, slots);
}

// The product and the convolution with one gradient for both, since the convolution's kernel has what the projection's bias needs. cuBLAS
// multiplies faster without a bias: the convolution's kernels add it where they read the product.
struct ProjectedConvFunction : torch::autograd::Function<ProjectedConvFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const Tensor& x, const Tensor& in_weight, const Tensor& in_bias, const Tensor& weight,
                           const OptionalTensor& bias, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor u = linear_by_library(x, in_weight, {});
    const auto halves = u.split(weight.size(0), 1);
    const auto [y, state] = short_conv_with(kCuda, {halves[0], weight, bias, halves[1], true, in_bias}, cu_seqlens, initial_state);
    context->save_for_backward({x, in_weight, in_bias, u, weight, value_or_undefined(bias), cu_seqlens, value_or_undefined(initial_state)});
    context->set_materialize_grads(false);
    return {y, state};
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &x = saved[0], &in_weight = saved[1], &u = saved[3], &weight = saved[4];
    const OnDevice device("projected_conv_backward", {{"x", x}, {"weight", weight}});
    const auto halves = u.split(weight.size(0), 1);
    const Tensor grad_y = grads[0].defined() ? grads[0] : at::zeros_like(halves[0]);
    const bool wants_bias = context->needs_input_grad(2);
    Tensor sums;
    const auto [of_u, of_weight, of_bias, of_gate, of_state] =
        short_conv_backward_with(kCuda, grad_y, if_defined(grads[1]), {halves[0], weight, if_defined(saved[5]), halves[1], true, saved[2]},
                                 saved[6], if_defined(saved[7]), wants_bias ? &sums : nullptr);
    const Tensor grad_u = join_columns({of_u, of_gate});
    Variables found{Tensor(), Tensor(), Tensor(), of_weight, of_bias, Tensor(), of_state};
    if (context->needs_input_grad(0)) found[0] = input_gradient_by_library(grad_u, in_weight);
    if (context->needs_input_grad(1)) found[1] = at::matmul(grad_u.t(), x);
    if (wants_bias) found[2] = sums.defined() ? sums.to(x.scalar_type()) : column_sums(grad_u);
    return found;
  }
};

std::tuple<Tensor, Tensor> projected_conv_autograd(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias,
                                                   const Tensor& weight, const OptionalTensor& bias, const Tensor& cu_seqlens,
                                                   const OptionalTensor& initial_state) {
  const OnDevice device("projected_conv", {{"x", x},
                                           {"in_weight", in_weight},
                                           {"in_bias", in_bias},
                                           {"weight", weight},
                                           {"bias", bias},
                                           {"cu_seqlens", cu_seqlens},
                                           {"initial_state", initial_state}});
  if (!in_bias || !has_kernel(x)) return projected_conv_by_parts(x, in_weight, in_bias, weight, bias, cu_seqlens, initial_state);
  check_projected_conv(x, in_weight, in_bias, weight);
  const auto out = ProjectedConvFunction::apply(x, in_weight, *in_bias, weight, bias, cu_seqlens, initial_state);
  return {out[0], out[1]};
}

Tensor projected_conv_prefill_cuda(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                                   const OptionalTensor& bias, const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  const OnDevice device("projected_conv_prefill", {{"x", x},
                                                   {"in_weight", in_weight},
                                                   {"in_bias", in_bias},
                                                   {"weight", weight},
                                                   {"bias", bias},
                                                   {"cu_seqlens", cu_seqlens},
                                                   {"state", state},
                                                   {"slots", slots}});
  if (!in_bias || !has_kernel(x)) return projected_conv_prefill_by_parts(x, in_weight, in_bias, weight, bias, cu_seqlens, state, slots);
  check_projected_conv(x, in_weight, in_bias, weight);
  require_no_gradient("projected_conv_prefill", {x, in_weight, *in_bias, weight, value_or_undefined(bias), state});
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto u = ops::linear(x, in_weight, {}).split(weight.size(0), 1);
  return short_conv_prefill_with(kCuda, {u[0], weight, bias, u[1], true, *in_bias}, cu_seqlens, state, slots);
}

TORCH_LIBRARY_IMPL(based, AutogradCUDA, m) {
  m.impl("projected_conv", projected_conv_autograd);
  m.impl("projected_conv_prefill", projected_conv_prefill_cuda);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("short_conv", forward);
  m.impl("short_conv_backward", backward);
  m.impl("short_conv_prefill", prefill);
  m.impl("short_conv_step", step);
  m.impl("projected_conv_prefill", projected_conv_prefill_cuda);
}

}  // namespace
}  // namespace based::ops
