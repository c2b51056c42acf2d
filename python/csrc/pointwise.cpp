// torch.ops.based: elementwise functions.
#include "based/kernels/pointwise/swiglu.h"

#include "based/ops/pointwise/pointwise_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::ActivationLaunchers;
using kernels::SwigluLaunchers;

struct Activation {
  Tensor x;
  int64_t function;
  double scale;
  OptionalTensor bias, log_rate;
  bool in_sums;
};

Tensor rowwise_activation(const Tensor& x, int64_t function, double scale, const OptionalTensor& bias, const OptionalTensor& log_rate,
                          bool in_sums) {
  constexpr const char* kOp = "rowwise_activation";
  Activation in{x, function, scale, as_contiguous(bias), as_contiguous(log_rate), in_sums};
  ops::check_rowwise_activation(in);
  const auto* table = launchers_for<ActivationLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Tensor>(kOp, x, function, scale, bias, log_rate, in_sums);
  const Tensor y = empty(sizes_of(x), x, in_sums ? sum_type(x) : x.scalar_type());
  if (x.dim() != 2 || x.stride(1) != 1) in.x = as_contiguous(x);
  if (bias && log_rate && bias->scalar_type() != log_rate->scalar_type()) {
    in.bias = as_contiguous(*bias, sum_type(x));
    in.log_rate = as_contiguous(*log_rate, sum_type(x));
  }
  require_ok(kOp, table->activate(ops::activate_arguments(in, y), queue_of(x)), x);
  return y;
}

Tensor swiglu(const Tensor& h) {
  constexpr const char* kOp = "swiglu";
  ops::check_swiglu(h);
  const auto* table = launchers_for<SwigluLaunchers>(kOp, h);
  if (table == nullptr) return call_reference<Tensor>(kOp, h);
  const Tensor rows = as_contiguous(h), y = empty({h.size(0), h.size(1) / 2}, h);
  require_ok(kOp, table->forward({data(rows), written_data(y), y.size(0), y.size(1), kernel_dtype(h)}, queue_of(h)), h);
  return y;
}

Tensor swiglu_backward(const Tensor& grad_y, const Tensor& h) {
  constexpr const char* kOp = "swiglu_backward";
  ops::check_swiglu(h);
  require_like(kOp, "grad_y", grad_y, h);
  require_shape(kOp, "grad_y", grad_y, {h.size(0), h.size(1) / 2});
  const auto* table = launchers_for<SwigluLaunchers>(kOp, h);
  if (table == nullptr) return call_reference<Tensor>(kOp, grad_y, h);
  const Tensor rows = as_contiguous(h), cotangent = as_contiguous(grad_y), grad_h = empty(sizes_of(h), h);
  const kernels::Swiglu forward{data(rows), nullptr, h.size(0), h.size(1) / 2, kernel_dtype(h)};
  require_ok(kOp, table->backward({forward, data(cotangent), written_data(grad_h)}, queue_of(h)), h);
  return grad_h;
}

void register_kernels(Library& m) {
  implement<rowwise_activation>(m, "rowwise_activation");
  implement<swiglu>(m, "swiglu");
  implement<swiglu_backward>(m, "swiglu_backward");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  define_with_reference(m,
                        "rowwise_activation(Tensor x, int function, float scale, Tensor? bias, Tensor? log_rate, bool in_sums) -> Tensor");
  define_with_reference(m, "swiglu(Tensor h) -> Tensor");
  define_with_reference(m, "swiglu_backward(Tensor grad_y, Tensor h) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
