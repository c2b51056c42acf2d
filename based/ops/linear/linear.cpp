#include "based/ops/linear/linear.h"

#include "based/kernels/common/cpu/isa.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/linear/linear_arguments.h"
#include "based/ops/pointwise/swiglu.h"

namespace based::ops {

void check_linear(const Linear& in) { check_linear_tensors(in); }

kernels::Linear linear_arguments(const Linear& in, const Tensor& y) { return linear_tensor_arguments(in, y); }

LinearLaunch prepare_linear(const Linear& in, int64_t columns) {
  LinearLaunch launch{with_unit_columns(in.x),
                      with_unit_columns(in.weight),
                      in.bias ? OptionalTensor(in.bias->contiguous()) : std::nullopt,
                      at::empty({in.x.size(0), columns}, in.x.options()),
                      {}};
  launch.arguments = linear_arguments({launch.x, launch.weight, launch.bias}, launch.y);
  return launch;
}

bool multiplies_in_fp32(const Tensor& x, const Tensor& weight) {
  constexpr int64_t block = 32;
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16) return false;
  const bool rows_end_inside_blocks = x.size(1) % block != 0 || weight.size(0) % block != 0;
  return kernels::cpu::isa() < kernels::cpu::Isa::avx512 || (kernels::cpu::machine_has_amx() && rows_end_inside_blocks);
}

namespace {

// The products are the same either way: sums are fp32, and rounded once.
Tensor many_rows(const Linear& in) {
  const auto& [x, weight, bias] = in;
  if (!multiplies_in_fp32(x, weight)) return at::linear(x, weight, bias);
  const Tensor y = at::linear(x.to(at::kFloat), weight.to(at::kFloat), bias ? OptionalTensor(bias->to(at::kFloat)) : OptionalTensor());
  return y.to(at::kBFloat16);
}

Tensor forward_reference(const Linear& in) {
  check_linear(in);
  return at::linear(in.x, in.weight, in.bias);
}

Tensor forward_meta(const Linear& in) {
  check_linear(in);
  return at::empty({in.x.size(0), in.weight.size(0)}, in.x.options());
}

// Each row by itself, with additions in an order that depends on the shape of the weight alone.
Tensor row_by_row(const Linear& in) {
  Tensor y = at::empty({in.x.size(0), in.weight.size(0)}, in.x.options());
  for (int64_t row = 0; row < in.x.size(0); ++row) {
    const Tensor sums = (in.weight * in.x[row]).sum(1);
    y[row].copy_(in.bias ? sums + *in.bias : sums);
  }
  return y;
}

Tensor forward_cpu(const Linear& in) {
  check_linear(in);
  if (in.x.size(0) > kBatchInvariantRows) return many_rows(in);
  const auto* table = launchers_of<kernels::LinearLaunchers>(in.x);
  if (table == nullptr) return row_by_row(in);
  const LinearLaunch launch = prepare_linear(in, in.weight.size(0));
  require_ok(table->forward(launch.arguments, queue_of(launch.x)));
  return launch.y;
}

bool wants_gradient_of(const Linear& in) { return wants_gradient({in.x, in.weight, value_or_undefined(in.bias)}); }

// ATen differentiates its linear layer.
Tensor linear_autograd(const Linear& in) {
  if (wants_gradient_of(in)) {
    check_linear(in);
    return in.x.is_cpu() ? many_rows(in) : at::linear(in.x, in.weight, in.bias);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

// For calls that have no single kernel. Both parts are differentiable.
Tensor swiglu_fallback(const LinearSwiglu& in) { return swiglu(call(in.layer)); }

Tensor linear_swiglu_autograd(const LinearSwiglu& in) {
  if (wants_gradient_of(in.layer)) return swiglu_fallback(in);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

Result<LinearSwiglu> linear_swiglu_named_reference(const LinearSwiglu& in) { return swiglu_reference(forward_reference(in.layer)); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<Linear>(m)
      .reference<forward_reference>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .cpu<forward_cpu>()
      .autograd<linear_autograd>();
  define<LinearSwiglu>(m).reference<swiglu_fallback>().named_reference<linear_swiglu_named_reference>().autograd<linear_swiglu_autograd>();
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) { return call(Linear{x, weight, bias}); }
Tensor linear_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return forward_reference(Linear{x, weight, bias});
}

Tensor linear_swiglu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) { return call(LinearSwiglu{{x, weight, bias}}); }
Tensor linear_swiglu_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return swiglu_reference(forward_reference(Linear{x, weight, bias}));
}

}  // namespace based::ops
