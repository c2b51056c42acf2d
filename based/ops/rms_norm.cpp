#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"
#include "based/ops/recompute.h"

namespace based::ops {
namespace {

using Forward = std::tuple<Tensor, Tensor>;             // y, inverse_rms
using Gradients = std::tuple<Tensor, Tensor>;           // of x, weight
using AddForward = std::tuple<Tensor, Tensor, Tensor>;  // sum, y, inverse_rms

constexpr const char *kOp = "rms_norm", *kAdd = "rms_norm_add", *kAddInPlace = "rms_norm_add_", *kAddBackward = "rms_norm_add_backward";
constexpr const char* kOfSum = "rms_norm_of_sum";

void check(const Tensor& x, const Tensor& weight) {
  require(at::isFloatingType(x.scalar_type()), kOp, "x must be floating, got ", x.scalar_type());
  require(at::isFloatingType(weight.scalar_type()), kOp, "weight must be floating, got ", weight.scalar_type());
  require(x.dim() >= 1 && x.size(-1) >= 1, kOp, "x must have a last dimension of at least 1, got ", x.sizes());
  require_shape(kOp, "weight", weight, {x.size(-1)});
}

std::vector<int64_t> rows_of(const Tensor& x) { return x.sizes().slice(0, x.dim() - 1).vec(); }

Forward forward_reference(const Tensor& x, const Tensor& weight, double eps) {
  check(x, weight);
  const Tensor sums = x.to(sum_type(x));
  const Tensor inverse_rms = (sums.square().mean(-1) + eps).rsqrt();
  return {(sums * inverse_rms.unsqueeze(-1) * weight.to(sum_type(weight))).to(weight.scalar_type()), inverse_rms};
}

Forward forward_meta(const Tensor& x, const Tensor& weight, double) {
  check(x, weight);
  return {at::empty(x.sizes(), weight.options()), at::empty(rows_of(x), x.options().dtype(sum_type(x)))};
}

Gradients backward_reference(const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& inverse_rms) {
  const at::ScalarType type = sum_type(x);
  const Tensor unit = x.to(type) * inverse_rms.unsqueeze(-1), scaled = grad_y.to(type) * weight.to(type);
  const Tensor grad_x = (scaled - unit * (scaled * unit).mean(-1, /*keepdim=*/true)) * inverse_rms.unsqueeze(-1);
  const Tensor grad_weight = (grad_y.to(type) * unit).reshape({-1, x.size(-1)}).sum(0);
  return {grad_x.to(x.scalar_type()), grad_weight.to(weight.scalar_type())};
}

Gradients backward_meta(const Tensor&, const Tensor& x, const Tensor& weight, const Tensor&) {
  return {at::empty(x.sizes(), x.options()), at::empty(weight.sizes(), weight.options())};
}

void check_add(const char* op, const OptionalTensor& residual, const Tensor& x, const Tensor& weight) {
  check(residual ? *residual : x, weight);
  if (residual) require_shape(op, "x", x, residual->sizes());
  require_type(op, "x", x, weight.scalar_type());
}

// Of the sum.
at::TensorOptions options_of_sum(const OptionalTensor& residual, const Tensor& x) {
  return residual ? residual->options() : x.options().dtype(sum_type(x));
}

void check_add_in_place(const Tensor& residual, const Tensor& x, const Tensor& weight, const OptionalTensor& deferred) {
  check_add(kAddInPlace, residual, x, weight);
  if (deferred) require_shape(kAddInPlace, "deferred", *deferred, residual.sizes());
  if (deferred) require_type(kAddInPlace, "deferred", *deferred, weight.scalar_type());
  require(residual.is_contiguous(), kAddInPlace, "residual must be contiguous");
}

AddForward add_forward_reference(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  check_add(kAdd, residual, x, weight);
  const Tensor sum = residual ? *residual + x : x.to(sum_type(x), /*non_blocking=*/false, /*copy=*/true);
  const auto [y, inverse_rms] = forward_reference(sum, weight, eps);
  return {sum, y, inverse_rms};
}

AddForward add_forward_meta(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  check_add(kAdd, residual, x, weight);
  const Tensor sum = at::empty(x.sizes(), options_of_sum(residual, x));
  const auto [y, inverse_rms] = forward_meta(sum, weight, eps);
  return {sum, y, inverse_rms};
}

Gradients add_backward_reference(const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& sum, const Tensor& weight,
                                 const Tensor& inverse_rms) {
  if (grad_sum) require_type(kAddBackward, "grad_sum", *grad_sum, weight.scalar_type());
  const auto [of_norm, grad_weight] = backward_reference(grad_y, sum, weight, inverse_rms);
  return {(grad_sum ? of_norm + *grad_sum : of_norm).to(weight.scalar_type()), grad_weight};
}

Gradients add_backward_meta(const OptionalTensor&, const Tensor&, const Tensor& sum, const Tensor& weight, const Tensor&) {
  return {at::empty(sum.sizes(), weight.options()), at::empty(weight.sizes(), weight.options())};
}

Tensor add_reference(Tensor residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  check_add_in_place(residual, x, weight, deferred);
  if (deferred) residual.add_(*deferred);
  return std::get<0>(forward_reference(residual.add_(x), weight, eps));
}

Tensor add_meta(Tensor residual, const Tensor& x, const Tensor& weight, double, const OptionalTensor& deferred) {
  check_add_in_place(residual, x, weight, deferred);
  return at::empty(residual.sizes(), weight.options());
}

Tensor of_sum_reference(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  check_add(kOfSum, residual, x, weight);
  return std::get<0>(forward_reference(residual + x, weight, eps));
}

Tensor of_sum_meta(const Tensor& residual, const Tensor& x, const Tensor& weight, double) {
  check_add(kOfSum, residual, x, weight);
  return at::empty(residual.sizes(), weight.options());
}

kernels::RmsNorm prepare(const Tensor& x, const Tensor& weight) {
  kernels::RmsNorm to;
  to.x = x.const_data_ptr();
  to.weight = weight.const_data_ptr();
  to.width = weight.size(0);
  to.rows = x.numel() / to.width;
  to.x_dtype = kernel_dtype(x);
  to.dtype = kernel_dtype(weight);
  return to;
}

bool norm_uses_kernel(const char* op, const PointwiseKernels& table, const Tensor& x, const Tensor& weight) {
  return uses_kernel(op, x, has_kernel(weight) && weight.numel() <= table.rms_norm_width);
}

// rms_norm of (x + deferred) + added, which is left in `sum`; any of these may be undefined, x where there is a sum. inverse_rms is
// undefined where it is not to be kept.
Forward launch_forward(const PointwiseKernels& table, const Tensor& x, const Tensor& added, const Tensor& sum, const Tensor& weight,
                       double eps, bool keep_inverse_rms, const Tensor& deferred = {}) {
  const Tensor rows = x.defined() ? x.contiguous() : sum, scale = weight.contiguous(), y = at::empty(rows.sizes(), weight.options());
  const Tensor more = added.defined() ? added.contiguous() : Tensor(), before = deferred.defined() ? deferred.contiguous() : Tensor();
  Tensor inverse_rms;
  kernels::RmsNorm to = rms_norm_arguments(x.defined() ? rows : x, more, sum, scale, eps, before, y);
  if (keep_inverse_rms) {
    inverse_rms = at::empty(rows_of(rows), rows.options().dtype(at::kFloat));
    to.inverse_rms = inverse_rms.mutable_data_ptr<float>();
  }
  require_ok(table.rms_norm(to));
  return {y, inverse_rms};
}

// The first gradient has x's type; that of a sum which was added up here, `added`, has weight's.
Gradients launch_backward(const PointwiseKernels& table, const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& x,
                          const Tensor& weight, const Tensor& inverse_rms, bool added) {
  const Tensor rows = x.contiguous(), scale = weight.contiguous(), cotangent = grad_y.contiguous(), inverse = inverse_rms.contiguous();
  const Tensor more = grad_sum ? grad_sum->contiguous() : Tensor(), grad = at::empty(x.sizes(), added ? weight.options() : x.options());
  const Tensor grad_weight = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
  kernels::RmsNormBackward to;
  to.forward = prepare(rows, scale);
  to.forward.inverse_rms = inverse.data_ptr<float>();
  to.grad_y = cotangent.const_data_ptr();
  if (grad_sum) to.grad_sum = more.const_data_ptr();
  (added ? to.grad_add : to.grad_x) = grad.mutable_data_ptr();
  to.grad_weight = grad_weight.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table.rms_norm_backward_scratch(to), x);
  require_ok(table.rms_norm_backward(to, scratch.mutable_data_ptr()));
  return {grad, grad_weight.to(weight.scalar_type())};
}

}  // namespace

kernels::RmsNorm rms_norm_arguments(const Tensor& x, const Tensor& added, const Tensor& sum, const Tensor& weight, double eps,
                                    const Tensor& deferred, const Tensor& y) {
  kernels::RmsNorm to = prepare(x.defined() ? x : sum, weight);
  if (!x.defined()) to.x = nullptr;
  if (added.defined()) to.add = added.const_data_ptr();
  if (deferred.defined()) to.deferred = deferred.const_data_ptr();
  if (sum.defined()) to.sum = sum.mutable_data_ptr();
  to.y = y.mutable_data_ptr();
  to.eps = static_cast<float>(eps);
  return to;
}

const PointwiseKernels kCpuPointwise{kernels::cpu::rms_norm_forward,  kernels::cpu::rms_norm_backward_scratch,
                                     kernels::cpu::rms_norm_backward, kernels::cpu::swiglu_forward,
                                     kernels::cpu::swiglu_backward,   kernels::cpu::rotary};

Forward rms_norm_forward_with(const PointwiseKernels& table, const Tensor& x, const Tensor& weight, double eps) {
  if (!norm_uses_kernel(kOp, table, x, weight)) return forward_reference(x, weight, eps);
  check(x, weight);
  return launch_forward(table, x, {}, {}, weight, eps, true);
}

AddForward rms_norm_add_forward_with(const PointwiseKernels& table, const OptionalTensor& residual, const Tensor& x, const Tensor& weight,
                                     double eps) {
  if (!norm_uses_kernel(kAdd, table, residual ? *residual : x, weight)) return add_forward_reference(residual, x, weight, eps);
  check_add(kAdd, residual, x, weight);
  const Tensor sum = at::empty(x.sizes(), options_of_sum(residual, x));
  const auto [y, inverse_rms] = launch_forward(table, value_or_undefined(residual), x, sum, weight, eps, true);
  return {sum, y, inverse_rms};
}

Tensor rms_norm_add_with(const PointwiseKernels& table, Tensor residual, const Tensor& x, const Tensor& weight, double eps,
                         const OptionalTensor& deferred) {
  if (!norm_uses_kernel(kAddInPlace, table, residual, weight)) return add_reference(residual, x, weight, eps, deferred);
  check_add_in_place(residual, x, weight, deferred);
  return std::get<0>(launch_forward(table, residual, x, residual, weight, eps, false, value_or_undefined(deferred)));
}

Tensor rms_norm_of_sum_with(const PointwiseKernels& table, const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  if (!norm_uses_kernel(kOfSum, table, residual, weight)) return of_sum_reference(residual, x, weight, eps);
  check_add(kOfSum, residual, x, weight);
  return std::get<0>(launch_forward(table, residual, x, {}, weight, eps, false));
}

Gradients rms_norm_add_backward_with(const PointwiseKernels& table, const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& sum,
                                     const Tensor& weight, const Tensor& inverse_rms) {
  if (!norm_uses_kernel(kAddBackward, table, sum, weight)) return add_backward_reference(grad_sum, grad_y, sum, weight, inverse_rms);
  if (grad_sum) require_type(kAddBackward, "grad_sum", *grad_sum, weight.scalar_type());
  return launch_backward(table, grad_sum, grad_y, sum, weight, inverse_rms, true);
}

Gradients rms_norm_backward_with(const PointwiseKernels& table, const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                 const Tensor& inverse_rms) {
  if (!norm_uses_kernel("rms_norm_backward", table, x, weight)) return backward_reference(grad_y, x, weight, inverse_rms);
  return launch_backward(table, {}, grad_y, x, weight, inverse_rms, false);
}

namespace {

Forward forward_cpu(const Tensor& x, const Tensor& weight, double eps) { return rms_norm_forward_with(kCpuPointwise, x, weight, eps); }

Tensor add_cpu(Tensor residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  return rms_norm_add_with(kCpuPointwise, residual, x, weight, eps, deferred);
}

Tensor add_autograd(Tensor residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  require_no_gradient(kAddInPlace, {residual, x, weight});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rms_norm_add_(residual, x, weight, eps, deferred);
}

Tensor of_sum_cpu(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  return rms_norm_of_sum_with(kCpuPointwise, residual, x, weight, eps);
}

Tensor of_sum_autograd(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  require_no_gradient(kOfSum, {residual, x, weight});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rms_norm_of_sum(residual, x, weight, eps);
}

Gradients backward_cpu(const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& inverse_rms) {
  return rms_norm_backward_with(kCpuPointwise, grad_y, x, weight, inverse_rms);
}

AddForward add_forward_cpu(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  return rms_norm_add_forward_with(kCpuPointwise, residual, x, weight, eps);
}

Gradients add_backward_cpu(const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& sum, const Tensor& weight,
                           const Tensor& inverse_rms) {
  return rms_norm_add_backward_with(kCpuPointwise, grad_sum, grad_y, sum, weight, inverse_rms);
}

Forward call_forward(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find_operator<decltype(call_forward)>("based::rms_norm_forward");
  return op.call(x, weight, eps);
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, const Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, inverse_rms] = call_forward(x, weight, eps);
    context->save_for_backward({x, weight, inverse_rms});
    return y;
  }

  static Variables backward(Context* context, const Variables& grads) {
    static const auto op = find_operator<decltype(backward_reference)>("based::rms_norm_backward");
    const Variables saved = context->get_saved_variables();
    const auto [x, weight] = op.call(grads[0], saved[0], saved[1], saved[2]);
    return {x, weight, Tensor()};
  }
};

Tensor norm(const Tensor& x, const Tensor& weight, double eps) { return std::get<0>(call_forward(x, weight, eps)); }

Tensor norm_autograd(const Tensor& x, const Tensor& weight, double eps) {
  if (wants_gradient({x, weight})) return RmsNormFunction::apply(x, weight, eps);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return norm(x, weight, eps);
}

AddForward call_add_forward(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find_operator<decltype(call_add_forward)>("based::rms_norm_add_forward");
  return op.call(residual, x, weight, eps);
}

// The gradients of residual and x are one tensor, of weight's type; so is that of the sum, which is the next sum's residual.
struct RmsNormAddFunction : torch::autograd::Function<RmsNormAddFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [sum, y, inverse_rms] = call_add_forward(residual, x, weight, eps);
    context->save_for_backward({sum, weight, inverse_rms});
    context->saved_data["has_residual"] = residual.has_value();
    context->set_materialize_grads(false);
    return {sum, y};
  }

  static Variables backward(Context* context, const Variables& grads) {
    static const auto op = find_operator<decltype(add_backward_reference)>("based::rms_norm_add_backward");
    const Variables saved = context->get_saved_variables();
    const Tensor grad_y = grads[1].defined() ? grads[1] : at::zeros(saved[0].sizes(), saved[1].options());
    const auto [x, weight] = op.call(if_defined(grads[0]), grad_y, saved[0], saved[1], saved[2]);
    return {context->saved_data["has_residual"].toBool() ? x : Tensor(), x, weight, Tensor()};
  }
};

Forward add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  const auto [sum, y, inverse_rms] = call_add_forward(residual, x, weight, eps);
  return {sum, y};
}

Forward add_norm_autograd(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  if (wants_gradient({value_or_undefined(residual), x, weight})) {
    const auto out = RmsNormAddFunction::apply(residual, x, weight, eps);
    out[0].grad_fn()->mutable_input_metadata(out[0].output_nr()).set_grad_dtype(weight.scalar_type());
    return {out[0], out[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return add(residual, x, weight, eps);
}

}  // namespace

std::tuple<Tensor, Tensor> rms_norm_add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find_operator<decltype(add)>("based::rms_norm_add");
  return op.call(residual, x, weight, eps);
}

std::tuple<Tensor, Tensor> rms_norm_add_reference(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  const auto [sum, y, inverse_rms] = add_forward_reference(residual, x, weight, eps);
  return {sum, y};
}

Tensor rms_norm_reference(const Tensor& x, const Tensor& weight, double eps) { return std::get<0>(forward_reference(x, weight, eps)); }

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find_operator<decltype(norm)>("based::rms_norm");
  return op.call(x, weight, eps);
}

Tensor rms_norm_add_(Tensor residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  static const auto op = find_operator<decltype(add_reference)>("based::rms_norm_add_");
  return op.call(residual, x, weight, eps, deferred);
}

Tensor rms_norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find_operator<decltype(of_sum_reference)>("based::rms_norm_of_sum");
  return op.call(residual, x, weight, eps);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor inverse_rms)");
  m.def("rms_norm_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor inverse_rms) -> (Tensor grad_x, Tensor grad_weight)");
  m.def("rms_norm_add(Tensor? residual, Tensor x, Tensor weight, float eps) -> (Tensor sum, Tensor y)");
  m.def("rms_norm_add_forward(Tensor? residual, Tensor x, Tensor weight, float eps) -> (Tensor sum, Tensor y, Tensor inverse_rms)");
  m.def(
      "rms_norm_add_backward(Tensor? grad_sum, Tensor grad_y, Tensor sum, Tensor weight, Tensor inverse_rms) -> "
      "(Tensor grad_x, Tensor grad_weight)");
  m.def("rms_norm_add_(Tensor(a!) residual, Tensor x, Tensor weight, float eps, Tensor? deferred=None) -> Tensor");
  m.def("rms_norm_of_sum(Tensor residual, Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rms_norm_reference(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("rms_norm", norm);
  m.impl("rms_norm_forward", forward_reference);
  m.impl("rms_norm_add_", add_reference);
  m.impl("rms_norm_of_sum", of_sum_reference);
  m.impl("rms_norm_add", add);
  m.impl("rms_norm_add_forward", add_forward_reference);
  m.impl("rms_norm_add_backward", add_backward_reference);
  m.impl("rms_norm_backward", backward_reference);
}

TORCH_LIBRARY_IMPL(based, CPU, m) {
  m.impl("rms_norm_forward", forward_cpu);
  m.impl("rms_norm_add_", add_cpu);
  m.impl("rms_norm_of_sum", of_sum_cpu);
  m.impl("rms_norm_add_forward", add_forward_cpu);
  m.impl("rms_norm_add_backward", add_backward_cpu);
  m.impl("rms_norm_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("rms_norm_forward", forward_meta);
  m.impl("rms_norm_add_", add_meta);
  m.impl("rms_norm_of_sum", of_sum_meta);
  m.impl("rms_norm_add_forward", add_forward_meta);
  m.impl("rms_norm_add_backward", add_backward_meta);
  m.impl("rms_norm_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("rms_norm", norm_autograd);
  m.impl("rms_norm_add_", add_autograd);
  m.impl("rms_norm_of_sum", of_sum_autograd);
  m.impl("rms_norm_add", add_norm_autograd);
}

}  // namespace
}  // namespace based::ops
