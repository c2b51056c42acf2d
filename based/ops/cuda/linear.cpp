// As many rows as a step of decoding has go through kernels of our own, which read the weights at memory speed; more through cuBLAS.
#include "based/ops/linear.h"

#include "based/ops/cuda/column_sums.h"
#include "based/ops/cuda/gated_hidden.h"
#include "based/ops/cuda/library_product.h"
#include "based/ops/cuda/on_device.h"
#include "based/ops/linear.h"
#include "based/ops/swiglu.h"

namespace based::ops {
namespace {

// Asked before a launch is prepared, which takes memory.
bool may_have_kernel(const Tensor& x) {
  return has_kernel(x) && x.size(0) <= kernels::cuda::most_linear_rows(/*weight_is_constant=*/false);
}

Tensor forward(const Linear& in) {
  check_linear(in);
  if (may_have_kernel(in.x)) {
    const LinearLaunch launch = prepare_linear(in, in.weight.size(0));
    if (kernels::cuda::linear_supports(launch.arguments)) {
      require_ok(kernels::cuda::linear(launch.arguments, current_stream()));
      return launch.y;
    }
  }
  return linear_by_library(in.x, in.weight, in.bias);
}

Tensor forward_swiglu(const LinearSwiglu& in) {
  const Tensor &x = in.layer.x, &weight = in.layer.weight;
  check_linear(in.layer);
  if (may_have_kernel(x) && weight.size(0) % 2 == 0) {
    const LinearLaunch launch = prepare_linear(in.layer, weight.size(0) / 2);
    if (kernels::cuda::linear_swiglu_supports(launch.arguments)) {
      require_ok(kernels::cuda::linear_swiglu(launch.arguments, current_stream()));
      return launch.y;
    }
  }
  if (!in.layer.bias && gated_hidden_supports(x, weight)) return gated_hidden(x, weight);
  return swiglu(forward(in.layer));
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    return linear_by_library(x, weight, bias);
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &grad_y = grads[0];
    const c10::cuda::CUDAGuard guard(weight.device());
    Variables found(3);
    if (context->needs_input_grad(0)) found[0] = input_gradient_by_library(grad_y, weight);
    if (context->needs_input_grad(1)) found[1] = at::matmul(grad_y.t(), x);
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) found[2] = column_sums(grad_y);
    return found;
  }
};

Tensor autograd(const Linear& in) {
  const auto& [x, weight, bias] = in;
  if (!wants_gradient({x, weight, value_or_undefined(bias)})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call(in);
  }
  check_linear(in);
  return has_kernel(x) ? LinearFunction::apply(x, weight, bias) : at::linear(x, weight, bias);
}

TORCH_LIBRARY_IMPL(based, AutogradCUDA, m) { implement<Linear, autograd>(m); }

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<Linear, forward>(m);
  implement<LinearSwiglu, forward_swiglu>(m);
}

}  // namespace
}  // namespace based::ops
