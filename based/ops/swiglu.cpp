#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "swiglu";

void check(const Tensor& h) {
  require(at::isFloatingType(h.scalar_type()), kOp, "h must be floating, got ", h.scalar_type());
  require_shape(kOp, "h", h, {-1, -1});
  require(h.size(1) % 2 == 0, kOp, "h must have an even number of columns, got ", h.size(1));
}

Tensor forward_reference(const Tensor& h) {
  check(h);
  const int64_t width = h.size(1) / 2;
  const Tensor sums = h.to(sum_type(h));
  return (sums.narrow(1, 0, width) * at::silu(sums.narrow(1, width, width))).to(h.scalar_type());
}

Tensor forward_meta(const Tensor& h) {
  check(h);
  return at::empty({h.size(0), h.size(1) / 2}, h.options());
}

Tensor backward_reference(const Tensor& grad_y, const Tensor& h) {
  const int64_t width = h.size(1) / 2;
  const Tensor sums = h.to(sum_type(h)), grad = grad_y.to(sum_type(h));
  const Tensor y = sums.narrow(1, 0, width), gate = sums.narrow(1, width, width), sigmoid = gate.sigmoid();
  return at::cat({grad * gate * sigmoid, grad * y * sigmoid * (1 + gate * (1 - sigmoid))}, 1).to(h.scalar_type());
}

Tensor backward_meta(const Tensor&, const Tensor& h) { return at::empty(h.sizes(), h.options()); }

}  // namespace

Tensor swiglu_with(const PointwiseKernels& table, const Tensor& h) {
  if (!uses_kernel(kOp, h)) return forward_reference(h);
  check(h);
  const Tensor in = h.contiguous(), y = at::empty({h.size(0), h.size(1) / 2}, h.options());
  require_ok(table.swiglu({in.const_data_ptr(), y.mutable_data_ptr(), y.size(0), y.size(1), kernel_dtype(h)}));
  return y;
}

Tensor swiglu_backward_with(const PointwiseKernels& table, const Tensor& grad_y, const Tensor& h) {
  if (!uses_kernel("swiglu_backward", h)) return backward_reference(grad_y, h);
  const Tensor in = h.contiguous(), cotangent = grad_y.contiguous(), grad_h = at::empty(h.sizes(), h.options());
  require_ok(table.swiglu_backward(
      {{in.const_data_ptr(), nullptr, h.size(0), h.size(1) / 2, kernel_dtype(h)}, cotangent.const_data_ptr(), grad_h.mutable_data_ptr()}));
  return grad_h;
}

namespace {

Tensor forward_cpu(const Tensor& h) { return swiglu_with(kCpuPointwise, h); }
Tensor backward_cpu(const Tensor& grad_y, const Tensor& h) { return swiglu_backward_with(kCpuPointwise, grad_y, h); }

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& h) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({h});
    return swiglu(h);
  }

  static Variables backward(Context* context, const Variables& grads) {
    static const auto op = find_operator<decltype(backward_reference)>("based::swiglu_backward");
    return {op.call(grads[0], context->get_saved_variables()[0])};
  }
};

Tensor swiglu_autograd(const Tensor& h) {
  if (wants_gradient({h})) return SwigluFunction::apply(h);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return swiglu(h);
}

}  // namespace

Tensor swiglu_reference(const Tensor& h) { return forward_reference(h); }

Tensor swiglu(const Tensor& h) {
  static const auto op = find_operator<decltype(forward_reference)>("based::swiglu");
  return op.call(h);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("swiglu(Tensor h) -> Tensor");
  m.def("swiglu_backward(Tensor grad_y, Tensor h) -> Tensor");
  m.def("swiglu_reference(Tensor h) -> Tensor", swiglu_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("swiglu", forward_reference);
  m.impl("swiglu_backward", backward_reference);
}

TORCH_LIBRARY_IMPL(based, CPU, m) {
  m.impl("swiglu", forward_cpu);
  m.impl("swiglu_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("swiglu", forward_meta);
  m.impl("swiglu_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("swiglu", swiglu_autograd); }

}  // namespace
}  // namespace based::ops
