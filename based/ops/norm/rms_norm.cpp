#include "based/ops/norm/rms_norm.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/norm/norm_arguments.h"
#include "based/ops/pointwise/rowwise_activation.h"

namespace based::ops {
namespace {

using kernels::RmsNormLaunchers;

void check(const RmsNormAdd& in) { check_rms_norm_sum("rms_norm_add", in.residual, in.x, in.weight); }
void check(const RmsNormOfSum& in) { check_rms_norm_sum("rms_norm_of_sum", OptionalTensor(in.residual), in.x, in.weight); }
void check(const RmsNormAddInPlace& in) {
  constexpr const char* op = "rms_norm_add_";
  check_rms_norm_sum(op, OptionalTensor(in.residual), in.x, in.weight);
  if (in.deferred) require_shape(op, "deferred", *in.deferred, in.residual.sizes());
  if (in.deferred) require_type(op, "deferred", *in.deferred, in.weight.scalar_type());
  require(in.residual.is_contiguous(), op, "residual must be contiguous");
}

void check(const RmsNormGated& in) {
  constexpr const char* op = "rms_norm_gated";
  check_rms_norm(in.inputs.x, in.inputs.weight);
  require_shape(op, "gate", in.gate, in.inputs.x.sizes());
  require_type(op, "gate", in.gate, in.inputs.weight.scalar_type());
}

std::vector<int64_t> rms_norm_rows(const Tensor& x) { return x.sizes().slice(0, x.dim() - 1).vec(); }

Result<RmsNormForward> forward_reference(const RmsNorm& in) {
  check_rms_norm(in.x, in.weight);
  const Tensor sums = in.x.to(sum_type(in.x));
  const Tensor inverse_rms = (sums.square().mean(-1) + in.eps).rsqrt();
  return {(sums * inverse_rms.unsqueeze(-1) * in.weight.to(sum_type(in.weight))).to(in.weight.scalar_type()), inverse_rms};
}

Result<RmsNormForward> forward_meta(const RmsNorm& in) {
  check_rms_norm(in.x, in.weight);
  return {at::empty(in.x.sizes(), in.weight.options()), at::empty(rms_norm_rows(in.x), in.x.options().dtype(sum_type(in.x)))};
}

Result<RmsNormBackward> backward_reference(const RmsNormBackward& in) {
  const auto& [grad_y, x, weight, inverse_rms] = in;
  const at::ScalarType type = sum_type(x);
  const Tensor unit = x.to(type) * inverse_rms.unsqueeze(-1), scaled = grad_y.to(type) * weight.to(type);
  const Tensor grad_x = (scaled - unit * (scaled * unit).mean(-1, /*keepdim=*/true)) * inverse_rms.unsqueeze(-1);
  const Tensor grad_weight = (grad_y.to(type) * unit).reshape({-1, x.size(-1)}).sum(0);
  return {grad_x.to(x.scalar_type()), grad_weight.to(weight.scalar_type())};
}

Result<RmsNormBackward> backward_meta(const RmsNormBackward& in) {
  return {at::empty(in.x.sizes(), in.x.options()), at::empty(in.weight.sizes(), in.weight.options())};
}

Result<RmsNormAddForward> add_forward_reference(const RmsNormAdd& in) {
  check(in);
  const Tensor sum = in.residual ? *in.residual + in.x : in.x.to(sum_type(in.x), /*non_blocking=*/false, /*copy=*/true);
  const auto [y, inverse_rms] = forward_reference(RmsNorm{sum, in.weight, in.eps});
  return {sum, y, inverse_rms};
}

Tensor empty_sum(const RmsNormAdd& in) {
  return at::empty(in.x.sizes(), in.residual ? in.residual->options() : in.x.options().dtype(sum_type(in.x)));
}

Result<RmsNormAddForward> add_forward_meta(const RmsNormAdd& in) {
  check(in);
  const Tensor sum = empty_sum(in);
  const auto [y, inverse_rms] = forward_meta(RmsNorm{sum, in.weight, in.eps});
  return {sum, y, inverse_rms};
}

void check(const RmsNormAddBackward& in) {
  if (in.grad_sum) require_type("rms_norm_add_backward", "grad_sum", *in.grad_sum, in.weight.scalar_type());
}

Result<RmsNormAddBackward> add_backward_reference(const RmsNormAddBackward& in) {
  check(in);
  const auto [grad_x, grad_weight] = backward_reference(RmsNormBackward{in.grad_y, in.sum, in.weight, in.inverse_rms});
  return {(in.grad_sum ? grad_x + *in.grad_sum : grad_x).to(in.weight.scalar_type()), grad_weight};
}

Result<RmsNormAddBackward> add_backward_meta(const RmsNormAddBackward& in) {
  return {at::empty(in.sum.sizes(), in.weight.options()), at::empty(in.weight.sizes(), in.weight.options())};
}

Tensor add_in_place_reference(const RmsNormAddInPlace& in) {
  check(in);
  if (in.deferred) in.residual.add_(*in.deferred);
  return std::get<0>(forward_reference(RmsNorm{in.residual.add_(in.x), in.weight, in.eps}));
}

Tensor sum_reference(const RmsNormOfSum& in) {
  check(in);
  return std::get<0>(forward_reference(RmsNorm{in.residual + in.x, in.weight, in.eps}));
}

Tensor gated_reference(const RmsNormGated& in) {
  check(in);
  const at::ScalarType type = sum_type(in.gate);
  const Tensor y = std::get<0>(forward_reference(RmsNorm{in.inputs.x, in.inputs.weight.to(type), in.inputs.eps}));
  return (y * rowwise_activation(in.gate.to(type), kernels::Activation::silu)).to(in.gate.scalar_type());
}

Tensor gated_meta(const RmsNormGated& in) {
  check(in);
  return at::empty(in.gate.sizes(), in.gate.options());
}

template <class Op>
Tensor like_residual(const Op& in) {
  check(in);
  return at::empty(in.residual.sizes(), in.weight.options());
}

const RmsNormLaunchers* rms_norm_launchers(const char* op, const Tensor& x, const Tensor& weight) {
  const RmsNormLaunchers* table = launchers_of<RmsNormLaunchers>(x);
  return launchers_for<RmsNormLaunchers>(op, x, table != nullptr && has_kernel(weight) && weight.numel() <= table->max_width);
}

// y and inverse_rms, which is undefined without keep_inverse_rms.
Result<RmsNormForward> launch_forward(const RmsNormLaunchers& table, const NormedSum& terms, const Tensor& weight, double eps,
                                      bool keep_inverse_rms) {
  const auto contiguous = [](const Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : Tensor(); };
  const Tensor x = contiguous(terms.x), added = contiguous(terms.added), deferred = contiguous(terms.deferred), scale = weight.contiguous();
  const Tensor& any = x.defined() ? x : terms.sum;
  const Tensor y = at::empty(any.sizes(), weight.options());
  Tensor inverse_rms;
  kernels::RmsNorm to = rms_norm_arguments({x, added, deferred, terms.sum}, scale, eps, y);
  if (keep_inverse_rms) {
    inverse_rms = at::empty(rms_norm_rows(any), any.options().dtype(at::kFloat));
    to.inverse_rms = inverse_rms.mutable_data_ptr<float>();
  }
  require_ok(table.forward(to, queue_of(any)));
  return {y, inverse_rms};
}

// The gradient of x has x's type; with `added`, x is a sum that the operator has made, and its gradient has weight's type.
Result<RmsNormBackward> launch_backward(const RmsNormLaunchers& table, const RmsNormBackward& in, const OptionalTensor& grad_sum,
                                        bool added) {
  const auto& [grad_y, x, weight, inverse_rms] = in;
  const Tensor rows = x.contiguous(), scale = weight.contiguous(), cotangent = grad_y.contiguous(), inverse = inverse_rms.contiguous();
  const Tensor more = grad_sum ? grad_sum->contiguous() : Tensor(), grad = at::empty(x.sizes(), added ? weight.options() : x.options());
  const Tensor grad_weight = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
  kernels::RmsNormBackward to;
  to.forward = rms_norm_of_rows(rows, scale);
  to.forward.inverse_rms = inverse.data_ptr<float>();
  to.grad_y = cotangent.const_data_ptr();
  if (grad_sum) to.grad_sum = more.const_data_ptr();
  (added ? to.grad_add : to.grad_x) = grad.mutable_data_ptr();
  to.grad_weight = grad_weight.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table.backward_scratch(to), x);
  require_ok(table.backward(to, scratch.mutable_data_ptr(), queue_of(x)));
  return {grad, grad_weight.to(weight.scalar_type())};
}

Result<RmsNormForward> forward(const RmsNorm& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm", in.x, in.weight);
  if (table == nullptr) return forward_reference(in);
  check_rms_norm(in.x, in.weight);
  return launch_forward(*table, {in.x, {}, {}, {}}, in.weight, in.eps, true);
}

Tensor gated(const RmsNormGated& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm_gated", in.inputs.x, in.inputs.weight);
  if (table == nullptr) return gated_reference(in);
  check(in);
  const Tensor x = in.inputs.x.contiguous(), weight = in.inputs.weight.contiguous(), gate = in.gate.contiguous(), y = gated_meta(in);
  kernels::RmsNorm to = rms_norm_arguments({x, {}, {}, {}}, weight, in.inputs.eps, y);
  to.gate = gate.const_data_ptr();
  require_ok(table->forward(to, queue_of(x)));
  return y;
}

Result<RmsNormAddForward> add_forward(const RmsNormAdd& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm_add", in.residual ? *in.residual : in.x, in.weight);
  if (table == nullptr) return add_forward_reference(in);
  check(in);
  const Tensor sum = empty_sum(in);
  const auto [y, inverse_rms] = launch_forward(*table, {value_or_undefined(in.residual), in.x, {}, sum}, in.weight, in.eps, true);
  return {sum, y, inverse_rms};
}

Tensor add_in_place(const RmsNormAddInPlace& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm_add_", in.residual, in.weight);
  if (table == nullptr) return add_in_place_reference(in);
  check(in);
  const Tensor deferred = value_or_undefined(in.deferred);
  return std::get<0>(launch_forward(*table, {in.residual, in.x, deferred, in.residual}, in.weight, in.eps, false));
}

Tensor norm_of_sum(const RmsNormOfSum& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm_of_sum", in.residual, in.weight);
  if (table == nullptr) return sum_reference(in);
  check(in);
  return std::get<0>(launch_forward(*table, {in.residual, in.x, {}, {}}, in.weight, in.eps, false));
}

Result<RmsNormAddBackward> add_backward(const RmsNormAddBackward& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm_add_backward", in.sum, in.weight);
  if (table == nullptr) return add_backward_reference(in);
  check(in);
  return launch_backward(*table, {in.grad_y, in.sum, in.weight, in.inverse_rms}, in.grad_sum, true);
}

Result<RmsNormBackward> backward(const RmsNormBackward& in) {
  const RmsNormLaunchers* table = rms_norm_launchers("rms_norm_backward", in.x, in.weight);
  if (table == nullptr) return backward_reference(in);
  return launch_backward(*table, in, {}, false);
}

Tensor norm(const RmsNorm& in) { return std::get<0>(call(RmsNormForward{in})); }

// The gradients of residual and x are one tensor, of weight's type; so is that of the sum, which is the next sum's residual.
struct RmsNormAddFunction : torch::autograd::Function<RmsNormAddFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [sum, y, inverse_rms] = call(RmsNormAddForward{residual, x, weight, eps});
    context->save_for_backward({sum, weight, inverse_rms});
    context->saved_data["has_residual"] = residual.has_value();
    context->set_materialize_grads(false);
    return {sum, y};
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor grad_y = grads[1].defined() ? grads[1] : at::zeros(saved[0].sizes(), saved[1].options());
    const auto [x, weight] = call(RmsNormAddBackward{if_defined(grads[0]), grad_y, saved[0], saved[1], saved[2]});
    return {context->saved_data["has_residual"].toBool() ? x : Tensor(), x, weight, Tensor()};
  }
};

Result<RmsNormAdd> add(const RmsNormAdd& in) {
  const auto [sum, y, inverse_rms] = call(RmsNormAddForward{in});
  return {sum, y};
}

Result<RmsNormAdd> add_autograd(const RmsNormAdd& in) {
  if (!wants_gradient({value_or_undefined(in.residual), in.x, in.weight})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return add(in);
  }
  const auto out = RmsNormAddFunction::apply(in.residual, in.x, in.weight, in.eps);
  out[0].grad_fn()->mutable_input_metadata(out[0].output_nr()).set_grad_dtype(in.weight.scalar_type());
  return {out[0], out[1]};
}

Result<RmsNorm> rms_norm_named_reference(const RmsNorm& in) { return rms_norm_reference(in.x, in.weight, in.eps); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<RmsNorm>(m)
      .reference<norm>()
      .named_reference<rms_norm_named_reference>()
      .autograd<call_with_gradient<RmsNorm, RmsNormForward, RmsNormBackward>>();
  define<RmsNormForward>(m)
      .reference<on_inputs<RmsNormForward, forward_reference>>()
      .meta<on_inputs<RmsNormForward, forward_meta>>()
      .kernel<on_inputs<RmsNormForward, forward>>();
  define<RmsNormBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
  define<RmsNormGated>(m).reference<gated_reference>().meta<gated_meta>().kernel<gated>().without_gradient();
  define<RmsNormAdd>(m).reference<add>().autograd<add_autograd>();
  define<RmsNormAddForward>(m)
      .reference<on_inputs<RmsNormAddForward, add_forward_reference>>()
      .meta<on_inputs<RmsNormAddForward, add_forward_meta>>()
      .kernel<on_inputs<RmsNormAddForward, add_forward>>();
  define<RmsNormAddBackward>(m).reference<add_backward_reference>().meta<add_backward_meta>().kernel<add_backward>();
  define<RmsNormAddInPlace>(m)
      .reference<add_in_place_reference>()
      .meta<like_residual<RmsNormAddInPlace>>()
      .kernel<add_in_place>()
      .without_gradient();
  define<RmsNormOfSum>(m).reference<sum_reference>().meta<like_residual<RmsNormOfSum>>().kernel<norm_of_sum>().without_gradient();
}

}  // namespace

kernels::RmsNorm rms_norm_arguments(const NormedSum& terms, const Tensor& weight, double eps, const Tensor& y) {
  return rms_norm_of_terms(terms, weight, eps, y);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) { return call(RmsNorm{x, weight, eps}); }
Tensor rms_norm_reference(const Tensor& x, const Tensor& weight, double eps) {
  return std::get<0>(forward_reference(RmsNorm{x, weight, eps}));
}

Tensor rms_norm_gated(const Tensor& x, const Tensor& weight, double eps, const Tensor& gate) {
  if (wants_gradient({x, weight, gate})) return rms_norm(x, weight, eps) * rowwise_activation(gate, kernels::Activation::silu);
  return call(RmsNormGated{{x, weight, eps}, gate});
}

std::tuple<Tensor, Tensor> rms_norm_add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  return call(RmsNormAdd{residual, x, weight, eps});
}

std::tuple<Tensor, Tensor> rms_norm_add_reference(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  const auto [sum, y, inverse_rms] = add_forward_reference({residual, x, weight, eps});
  return {sum, y};
}

Tensor rms_norm_add_(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  return call(RmsNormAddInPlace{residual, x, weight, eps, deferred});
}

Tensor rms_norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  return call(RmsNormOfSum{residual, x, weight, eps});
}

}  // namespace based::ops
