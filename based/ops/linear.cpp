#include "based/kernels/linear.h"

#include "based/kernels/cpu/isa.h"
#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "linear";

}  // namespace

void check_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  require(at::isFloatingType(x.scalar_type()), kOp, "x must be floating, got ", x.scalar_type());
  require_shape(kOp, "x", x, {-1, -1});
  require_like(kOp, "weight", weight, x);
  require_shape(kOp, "weight", weight, {-1, x.size(1)});
  if (!bias) return;
  require_like(kOp, "bias", *bias, x);
  require_shape(kOp, "bias", *bias, {weight.size(0)});
}

kernels::Linear linear_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  kernels::Linear to;
  to.x = x.const_data_ptr();
  to.weight = weight.const_data_ptr();
  if (bias.defined()) to.bias = bias.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.rows = x.size(0), to.in = x.size(1), to.out = weight.size(0);
  to.x_stride = x.stride(0), to.weight_stride = weight.stride(0), to.y_stride = y.stride(0);
  to.dtype = kernel_dtype(x), to.y_dtype = kernel_dtype(y);
  return to;
}

LinearLaunch prepare_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, int64_t columns) {
  LinearLaunch launch{with_unit_columns(x),
                      with_unit_columns(weight),
                      bias ? bias->contiguous() : Tensor(),
                      at::empty({x.size(0), columns}, x.options()),
                      {}};
  launch.arguments = linear_arguments(launch.x, launch.weight, launch.bias, launch.y);
  return launch;
}

bool faster_in_fp32(const Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && kernels::cpu::isa() < kernels::cpu::Isa::avx512;
}

namespace {

// The products are the same either way: sums are fp32, and rounded once.
Tensor many_rows(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  if (!faster_in_fp32(x)) return at::linear(x, weight, bias);
  const Tensor y = at::linear(x.to(at::kFloat), weight.to(at::kFloat), bias ? OptionalTensor(bias->to(at::kFloat)) : OptionalTensor());
  return y.to(at::kBFloat16);
}

Tensor forward_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_linear(x, weight, bias);
  return at::linear(x, weight, bias);
}

Tensor forward_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_linear(x, weight, bias);
  return at::empty({x.size(0), weight.size(0)}, x.options());
}

// Each row by itself, with additions in an order that depends on the shape of the weight alone.
Tensor row_by_row(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  for (int64_t row = 0; row < x.size(0); ++row) {
    const Tensor sums = (weight * x[row]).sum(1);
    y[row].copy_(bias ? sums + *bias : sums);
  }
  return y;
}

Tensor forward_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_linear(x, weight, bias);
  if (x.size(0) > kBatchInvariantRows) return many_rows(x, weight, bias);
  if (!has_kernel(x)) return row_by_row(x, weight, bias);
  const LinearLaunch launch = prepare_linear(x, weight, bias, weight.size(0));
  require_ok(kernels::cpu::linear(launch.arguments));
  return launch.y;
}

// Where no kernel does both at once. Its parts have gradients of their own.
Tensor swiglu_fallback(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) { return swiglu(ops::linear(x, weight, bias)); }

Tensor linear_swiglu_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  if (wants_gradient({x, weight, value_or_undefined(bias)})) return swiglu_fallback(x, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return linear_swiglu(x, weight, bias);
}

// ATen's linear layer brings its own gradient.
Tensor linear_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  if (wants_gradient({x, weight, value_or_undefined(bias)})) {
    check_linear(x, weight, bias);
    return x.is_cpu() ? many_rows(x, weight, bias) : at::linear(x, weight, bias);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return ops::linear(x, weight, bias);
}

}  // namespace

Tensor linear_swiglu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  static const auto op = find_operator<decltype(forward_reference)>("based::linear_swiglu");
  return op.call(x, weight, bias);
}

Tensor linear_swiglu_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return swiglu_reference(linear_reference(x, weight, bias));
}

Tensor linear_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) { return forward_reference(x, weight, bias); }

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  static const auto op = find_operator<decltype(forward_reference)>("based::linear");
  return op.call(x, weight, bias);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("linear_reference(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", linear_reference);
  m.def("linear_swiglu(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("linear_swiglu_reference(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", linear_swiglu_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("linear", forward_reference);
  m.impl("linear_swiglu", swiglu_fallback);
}
TORCH_LIBRARY_IMPL(based, CPU, m) { m.impl("linear", forward_cpu); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("linear", forward_meta); }
TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("linear", linear_autograd);
  m.impl("linear_swiglu", linear_swiglu_autograd);
}

}  // namespace
}  // namespace based::ops
