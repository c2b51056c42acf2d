// Our own kernels compute products with few rows, as in a step of decoding, at the speed of reading the weights. cuBLAS computes the
// others.
#include "based/ops/linear/linear.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/linear/cuda/column_sums.h"
#include "based/ops/linear/cuda/gated_hidden.h"
#include "based/ops/linear/cuda/library_product.h"
#include "based/ops/pointwise/swiglu.h"

namespace based::ops {
namespace {

using kernels::LinearLaunchers;

// Null for rows without a kernel. Called before a launch is prepared, which allocates memory.
const LinearLaunchers* launchers_of_rows(const Tensor& x) {
  return x.size(0) <= kernels::cuda::most_linear_rows(/*weight_is_constant=*/false) ? launchers_of<LinearLaunchers>(x) : nullptr;
}

Tensor forward(const Linear& in) {
  check_linear(in);
  if (const LinearLaunchers* table = launchers_of_rows(in.x)) {
    const LinearLaunch launch = prepare_linear(in, in.weight.size(0));
    if (table->supports(launch.arguments)) {
      require_ok(table->forward(launch.arguments, queue_of(in.x)));
      return launch.y;
    }
  }
  return linear_by_library(in.x, in.weight, in.bias);
}

Tensor forward_swiglu(const LinearSwiglu& in) {
  const Tensor &x = in.layer.x, &weight = in.layer.weight;
  check_linear(in.layer);
  if (const LinearLaunchers* table = launchers_of_rows(x); table != nullptr && weight.size(0) % 2 == 0) {
    const LinearLaunch launch = prepare_linear(in.layer, weight.size(0) / 2);
    if (table->swiglu_supports(launch.arguments)) {
      require_ok(table->swiglu(launch.arguments, queue_of(x)));
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
    const c10::DeviceGuard guard(weight.device());
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

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, AutogradCUDA, m) { implement<Linear, autograd>(m); }

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CUDA, m) {
  implement<Linear, forward>(m);
  implement<LinearSwiglu, forward_swiglu>(m);
}

}  // namespace
}  // namespace based::ops
