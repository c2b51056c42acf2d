#include "based/ops/conv/diagonal_filter.h"

#include "based/ops/conv/long_conv_arguments.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"

namespace based::ops {
namespace {

using kernels::DiagonalFilterLaunchers;

void check(const DiagonalFilter& in) { check_diagonal_filter(in.poles, in.taps); }

Tensor forward_reference(const DiagonalFilter& in) {
  check(in);
  const DiscretePoles poles = discretised(in.poles);
  const Tensor sums = at::real(at::matmul((poles.c * poles.b).unsqueeze(1), poles.powers(in.taps))).squeeze(1);
  return (sums + at::constant_pad_nd(in.poles.D.to(at::kDouble).unsqueeze(1), {0, in.taps - 1})).to(sum_type(in.poles.D));
}

Result<DiagonalFilterBackward> backward_reference(const DiagonalFilterBackward& in) {
  const auto& [log_dt, log_decay, frequency, B, C, D] = in.forward.poles;
  const auto found = gradients_by_autograd(
      [taps = in.forward.taps](const std::vector<Tensor>& t) {
        return std::vector<Tensor>{forward_reference(DiagonalFilter{{t[0], t[1], t[2], t[3], t[4], t[5]}, taps})};
      },
      {log_dt, log_decay, frequency, B, C, D}, {in.grad_filter});
  return {found[0], found[1], found[2], found[3], found[4], found[5]};
}

Tensor forward_meta(const DiagonalFilter& in) {
  check(in);
  return at::empty({in.poles.log_dt.size(0), in.taps}, in.poles.log_dt.options().dtype(sum_type(in.poles.log_dt)));
}
Result<DiagonalFilterBackward> backward_meta(const DiagonalFilterBackward& in) {
  check(in.forward);
  const auto& [log_dt, log_decay, frequency, B, C, D] = in.forward.poles;
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {like(log_dt), like(log_decay), like(frequency), like(B), like(C), like(D)};
}

// On the CPU, where there is no kernel, ATen differentiates the reference.
Tensor differentiable(const DiagonalFilter& in) {
  if (in.poles.log_dt.is_cpu()) return forward_reference(in);
  return call_with_gradient<DiagonalFilter, DiagonalFilter, DiagonalFilterBackward, forward_reference>(in);
}

// The parameters as the kernels take them.
DiagonalPoles in_fp32(const DiagonalPoles& poles) {
  const auto one = [](const Tensor& x) { return x.to(at::kFloat).contiguous(); };
  return {one(poles.log_dt), one(poles.log_decay), one(poles.frequency), one(poles.B), one(poles.C), one(poles.D)};
}

Tensor forward(const DiagonalFilter& in) {
  const Tensor& first = in.poles.log_dt;
  const DiagonalFilterLaunchers* table = launchers_for<DiagonalFilterLaunchers>("diagonal_filter", first);
  if (table == nullptr) return forward_reference(in);
  check(in);
  const DiagonalPoles poles = in_fp32(in.poles);
  const Tensor filter = at::empty({poles.log_dt.size(0), in.taps}, poles.log_dt.options());
  kernels::DiagonalFilter to = diagonal_filter_arguments(poles, in.taps);
  to.filter = filter.mutable_data_ptr<float>();
  require_ok(table->forward(to, queue_of(first)));
  return filter;
}

Result<DiagonalFilterBackward> backward(const DiagonalFilterBackward& in) {
  const Tensor& first = in.forward.poles.log_dt;
  const DiagonalFilterLaunchers* table = launchers_for<DiagonalFilterLaunchers>("diagonal_filter_backward", first);
  if (table == nullptr) return backward_reference(in);
  check(in.forward);
  const DiagonalPoles poles = in_fp32(in.forward.poles);
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const DiagonalPoles grads{like(poles.log_dt), like(poles.log_decay), like(poles.frequency), like(poles.B), like(poles.C), like(poles.D)};
  const Tensor grad_filter = in.grad_filter.contiguous();
  kernels::DiagonalFilterBackward to;
  to.forward = diagonal_filter_arguments(poles, in.forward.taps);
  to.grad_filter = grad_filter.const_data_ptr<float>();
  set_diagonal_filter_gradients(to, grads);
  require_ok(table->backward(to, queue_of(first)));
  const auto typed = [&](const Tensor& x) { return x.to(first.scalar_type()); };
  return {typed(grads.log_dt), typed(grads.log_decay), typed(grads.frequency), typed(grads.B), typed(grads.C), typed(grads.D)};
}

}  // namespace

DiscretePoles discretised(const DiagonalPoles& poles) {
  const auto wide = [](const Tensor& parameter) { return parameter.to(at::kDouble); };
  const Tensor dt = wide(poles.log_dt).exp().unsqueeze(1);
  const Tensor half = at::complex(-wide(poles.log_decay).exp(), wide(poles.frequency)) * (dt / 2);
  const Tensor scale = 1 / (1 - half);
  return {(1 + half) * scale, at::view_as_complex(wide(poles.B).contiguous()) * dt * scale,
          at::view_as_complex(wide(poles.C).contiguous()) * 2};
}

Tensor DiscretePoles::powers(int64_t count) const {
  return (a.log().unsqueeze(-1) * at::arange(count, a.options().dtype(at::kDouble))).exp();
}

Tensor diagonal_filter_reference(const DiagonalPoles& poles, int64_t taps) { return forward_reference(DiagonalFilter{poles, taps}); }

Tensor diagonal_filter(const DiagonalPoles& poles, int64_t taps) { return call(DiagonalFilter{poles, taps}); }

namespace {

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<DiagonalFilter>(m)
      .reference<forward_reference>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .kernel<forward>()
      .autograd<differentiable>();
  define<DiagonalFilterBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
}

}  // namespace
}  // namespace based::ops
