#include "based/ops/pointwise/swiglu.h"

#include "based/kernels/pointwise/swiglu.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/pointwise/pointwise_arguments.h"

namespace based::ops {
namespace {

using kernels::SwigluLaunchers;

Tensor forward_reference(const Swiglu& in) {
  check_swiglu(in.h);
  const int64_t width = in.h.size(1) / 2;
  const Tensor sums = in.h.to(sum_type(in.h));
  return (sums.narrow(1, 0, width) * at::silu(sums.narrow(1, width, width))).to(in.h.scalar_type());
}

Tensor forward_meta(const Swiglu& in) {
  check_swiglu(in.h);
  return at::empty({in.h.size(0), in.h.size(1) / 2}, in.h.options());
}

Tensor backward_reference(const SwigluBackward& in) {
  const int64_t width = in.h.size(1) / 2;
  const Tensor sums = in.h.to(sum_type(in.h)), grad = in.grad_y.to(sum_type(in.h));
  const Tensor y = sums.narrow(1, 0, width), gate = sums.narrow(1, width, width), sigmoid = gate.sigmoid();
  return at::cat({grad * gate * sigmoid, grad * y * sigmoid * (1 + gate * (1 - sigmoid))}, 1).to(in.h.scalar_type());
}

Tensor backward_meta(const SwigluBackward& in) { return at::empty(in.h.sizes(), in.h.options()); }

Tensor forward(const Swiglu& in) {
  const SwigluLaunchers* table = launchers_for<SwigluLaunchers>("swiglu", in.h);
  if (table == nullptr) return forward_reference(in);
  const Tensor y = forward_meta(in), h = in.h.contiguous();
  require_ok(table->forward({h.const_data_ptr(), y.mutable_data_ptr(), y.size(0), y.size(1), kernel_dtype(h)}, queue_of(h)));
  return y;
}

Tensor backward(const SwigluBackward& in) {
  const SwigluLaunchers* table = launchers_for<SwigluLaunchers>("swiglu_backward", in.h);
  if (table == nullptr) return backward_reference(in);
  const Tensor h = in.h.contiguous(), cotangent = in.grad_y.contiguous(), grad_h = backward_meta(in);
  require_ok(table->backward(
      {{h.const_data_ptr(), nullptr, h.size(0), h.size(1) / 2, kernel_dtype(h)}, cotangent.const_data_ptr(), grad_h.mutable_data_ptr()},
      queue_of(h)));
  return grad_h;
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<Swiglu>(m)
      .reference<forward_reference>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .kernel<forward>()
      .autograd<call_with_gradient<Swiglu, Swiglu, SwigluBackward>>();
  define<SwigluBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
}

}  // namespace

Tensor swiglu_reference(const Tensor& h) { return forward_reference(Swiglu{h}); }
Tensor swiglu(const Tensor& h) { return call(Swiglu{h}); }

}  // namespace based::ops
