// Training a gated MLP: kernels that compute SwiGLU and its gradient within the products before and after it, where they support the
// shapes.
#include "based/ops/linear/gated_mlp.h"

#include "based/kernels/linear/gated_mlp.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/linear/cuda/gated_hidden.h"
#include "based/ops/linear/cuda/library_product.h"
#include "based/ops/linear/linear.h"
#include "based/ops/pointwise/swiglu.h"

namespace based::ops {
namespace {

kernels::GatedHidden hidden_arguments(const Tensor& x, const Tensor& weight) {
  kernels::GatedHidden p;
  p.x = x.const_data_ptr(), p.weight = weight.const_data_ptr();
  p.rows = x.size(0), p.in = x.size(1), p.width = weight.size(0) / 2;
  return p;
}

kernels::GatedHiddenBackward gradient_arguments(const Tensor& weight) {
  kernels::GatedHiddenBackward p;
  p.weight = weight.const_data_ptr();
  p.out = weight.size(0), p.width = weight.size(1);
  return p;
}

bool is_plain(const Tensor& x) { return x.scalar_type() == at::kBFloat16 && x.is_contiguous(); }

// The gradient of h through swiglu(h)·weightᵀ.
Tensor hidden_gradient(const Tensor& grad_y, const Tensor& weight, const Tensor& h) {
  Tensor g = grad_y.contiguous();
  if (reinterpret_cast<uintptr_t>(g.const_data_ptr()) % 16 != 0) g = g.clone();
  const Tensor grad_h = at::empty_like(h);
  kernels::GatedHiddenBackward p = gradient_arguments(weight);
  p.grad_y = g.const_data_ptr(), p.h = h.const_data_ptr(), p.grad_h = grad_h.mutable_data_ptr(), p.rows = h.size(0);
  require_ok(kernels::cuda::gated_hidden_backward(p, queue_of(h)));
  return grad_h;
}

struct GatedMlpFunction : torch::autograd::Function<GatedMlpFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, const Tensor& weight_in, const Tensor& weight_out) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor h;
    const Tensor a = gated_hidden(x, weight_in, &h);
    context->save_for_backward({x, weight_in, weight_out, h, a});
    return linear_by_library(a, weight_out, {});
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight_in = saved[1], &weight_out = saved[2], &h = saved[3], &a = saved[4], &grad_y = grads[0];
    const c10::DeviceGuard guard(h.device());
    Variables found(3);
    if (context->needs_input_grad(2)) found[2] = at::matmul(grad_y.t(), a);
    if (!context->needs_input_grad(0) && !context->needs_input_grad(1)) return found;
    const Tensor grad_h = hidden_gradient(grad_y, weight_out, h);
    if (context->needs_input_grad(1)) found[1] = at::matmul(grad_h.t(), x);
    if (context->needs_input_grad(0)) found[0] = input_gradient_by_library(grad_h, weight_in);
    return found;
  }
};

Tensor autograd(const GatedMlp& in) {
  const auto& [x, weight_in, weight_out] = in;
  check_gated_mlp(in);
  const bool at_once = wants_gradient({x, weight_in, weight_out}) && gated_hidden_supports(x, weight_in) && is_plain(weight_out) &&
                       kernels::cuda::gated_hidden_backward_supports(gradient_arguments(weight_out));
  return at_once ? GatedMlpFunction::apply(x, weight_in, weight_out) : ops::linear(linear_swiglu(x, weight_in), weight_out);
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, AutogradCUDA, m) { implement<GatedMlp, autograd>(m); }

}  // namespace

bool gated_hidden_supports(const Tensor& x, const Tensor& weight) {
  return x.size(0) > 128 && is_plain(x) && is_plain(weight) && kernels::cuda::gated_hidden_supports(hidden_arguments(x, weight));
}

Tensor gated_hidden(const Tensor& x, const Tensor& weight, Tensor* h) {
  kernels::GatedHidden p = hidden_arguments(x, weight);
  const Tensor y = at::empty({p.rows, p.width}, x.options());
  p.y = y.mutable_data_ptr();
  if (h != nullptr) *h = at::empty({p.rows, 2 * p.width}, x.options()), p.h = h->mutable_data_ptr();
  require_ok(kernels::cuda::gated_hidden(p, queue_of(x)));
  return y;
}

}  // namespace based::ops
