// torch.ops.based: long convolutions (H3, Hyena).
#include "based/ops/conv/long_conv_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::DiagonalFilterLaunchers;
using kernels::GatedLongConvLaunchers;
using ConvGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;                    // gradients of k, filter, q, v
using FilterGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // gradients of the parameters

struct Conv {
  Tensor k, filter;
  OptionalTensor q, v;
  int64_t length;
};

// A launch's arguments and the tensors that own their memory.
struct Launch {
  Conv inputs;
  kernels::GatedLongConv arguments;
};

Tensor in_fp32(const Tensor& x) {
  return x.scalar_type() == ScalarType::Float ? with_unit_columns(x) : as_contiguous(x, ScalarType::Float);
}
OptionalTensor in_fp32_if(const OptionalTensor& x) { return x ? OptionalTensor(in_fp32(*x)) : std::nullopt; }

Launch prepare(const Conv& in) {
  Launch launch{{in_fp32(in.k), as_contiguous(in.filter), in_fp32_if(in.q), in_fp32_if(in.v), in.length}, {}};
  launch.arguments = ops::gated_long_conv_arguments(launch.inputs);
  launch.arguments.single_tf32 = ops::takes_one_tf32_part(in.k, uses_tf32());
  return launch;
}

Tensor conv(const Tensor& k, const Tensor& filter, const OptionalTensor& q, const OptionalTensor& v, int64_t length) {
  constexpr const char* kOp = "gated_long_conv";
  const Conv in{k, filter, q, v, length};
  ops::check_gated_long_conv(in);
  if (const auto* table = launchers_for<GatedLongConvLaunchers>(kOp, k)) {
    Launch launch = prepare(in);
    if (launchers_for<GatedLongConvLaunchers>(kOp, k, table->supports(launch.arguments)) != nullptr) {
      const Tensor y = empty(sizes_of(k), k, ScalarType::Float);
      launch.arguments.y = written<float>(y);
      require_ok(kOp, table->forward(launch.arguments, queue_of(k)), k);
      return as_contiguous(y, k.scalar_type());
    }
  }
  return call_reference<Tensor>(kOp, k, filter, q, v, length);
}

ConvGradients conv_gradients(const char* op, const GatedLongConvLaunchers& table, const Tensor& grad_y, const Launch& launch,
                             ScalarType type) {
  const auto& [k, filter, q, v, length] = launch.inputs;
  const auto like = [](const OptionalTensor& x) { return x ? empty(sizes_of(*x), *x) : Tensor(); };
  const Tensor cotangent = as_contiguous(grad_y, ScalarType::Float), grad_k = like(k), grad_filter = like(filter), grad_q = like(q),
               grad_v = like(v);
  kernels::GatedLongConvBackward to;
  to.forward = launch.arguments;
  to.grad_y = pointer<float>(cotangent), to.grad_y_stride = cotangent.stride(0);
  to.grad_k = written<float>(grad_k), to.grad_k_stride = grad_k.stride(0);
  if (q) to.grad_q = written<float>(grad_q), to.grad_q_stride = grad_q.stride(0);
  if (v) to.grad_v = written<float>(grad_v), to.grad_v_stride = grad_v.stride(0);
  to.grad_filter = written<float>(grad_filter);
  const Tensor scratch = scratch_memory(table.backward_scratch(to), k);
  require_ok(op, table.backward(to, written_data(scratch), queue_of(k)), k);
  const auto typed = [&](const Tensor& x) { return x.defined() ? as_contiguous(x, type) : x; };
  return {typed(grad_k), grad_filter, typed(grad_q), typed(grad_v)};
}

ConvGradients conv_backward(const Tensor& grad_y, const Tensor& k, const Tensor& filter, const OptionalTensor& q, const OptionalTensor& v,
                            int64_t length) {
  constexpr const char* kOp = "gated_long_conv_backward";
  const Conv in{k, filter, q, v, length};
  ops::check_gated_long_conv(in);
  require_like(kOp, "grad_y", grad_y, k);
  require_shape(kOp, "grad_y", grad_y, sizes_of(k));
  if (const auto* table = launchers_for<GatedLongConvLaunchers>(kOp, k)) {
    const Launch launch = prepare(in);
    if (launchers_for<GatedLongConvLaunchers>(kOp, k, table->backward_supports(launch.arguments)) != nullptr)
      return conv_gradients(kOp, *table, grad_y, launch, k.scalar_type());
  }
  return call_reference<ConvGradients>(kOp, grad_y, k, filter, q, v, length);
}

struct Poles {
  Tensor log_dt, log_decay, frequency, B, C, D;
};

Poles in_fp32(const Poles& poles) {
  const auto one = [](const Tensor& x) { return as_contiguous(x, ScalarType::Float); };
  return {one(poles.log_dt), one(poles.log_decay), one(poles.frequency), one(poles.B), one(poles.C), one(poles.D)};
}

Tensor filter_forward(const Tensor& log_dt, const Tensor& log_decay, const Tensor& frequency, const Tensor& B, const Tensor& C,
                      const Tensor& D, int64_t taps) {
  constexpr const char* kOp = "diagonal_filter";
  const Poles in{log_dt, log_decay, frequency, B, C, D};
  ops::check_diagonal_filter(in, taps);
  const auto* table = launchers_for<DiagonalFilterLaunchers>(kOp, log_dt);
  if (table == nullptr) return call_reference<Tensor>(kOp, log_dt, log_decay, frequency, B, C, D, taps);
  const Poles poles = in_fp32(in);
  const Tensor filter = empty({log_dt.size(0), taps}, log_dt, ScalarType::Float);
  kernels::DiagonalFilter to = ops::diagonal_filter_arguments(poles, taps);
  to.filter = written<float>(filter);
  require_ok(kOp, table->forward(to, queue_of(log_dt)), log_dt);
  return filter;
}

FilterGradients filter_backward(const Tensor& grad_filter, const Tensor& log_dt, const Tensor& log_decay, const Tensor& frequency,
                                const Tensor& B, const Tensor& C, const Tensor& D, int64_t taps) {
  constexpr const char* kOp = "diagonal_filter_backward";
  const Poles in{log_dt, log_decay, frequency, B, C, D};
  ops::check_diagonal_filter(in, taps);
  require_shape(kOp, "grad_filter", grad_filter, {log_dt.size(0), taps});
  require_type(kOp, "grad_filter", grad_filter, sum_type(log_dt));
  const auto* table = launchers_for<DiagonalFilterLaunchers>(kOp, log_dt);
  if (table == nullptr) return call_reference<FilterGradients>(kOp, grad_filter, log_dt, log_decay, frequency, B, C, D, taps);
  const Poles poles = in_fp32(in);
  const auto like = [](const Tensor& x) { return empty(sizes_of(x), x); };
  const Poles grads{like(poles.log_dt), like(poles.log_decay), like(poles.frequency), like(poles.B), like(poles.C), like(poles.D)};
  const Tensor cotangent = as_contiguous(grad_filter);
  kernels::DiagonalFilterBackward to;
  to.forward = ops::diagonal_filter_arguments(poles, taps);
  to.grad_filter = pointer<float>(cotangent);
  ops::set_diagonal_filter_gradients(to, grads);
  require_ok(kOp, table->backward(to, queue_of(log_dt)), log_dt);
  const auto typed = [&](const Tensor& x) { return as_contiguous(x, log_dt.scalar_type()); };
  return {typed(grads.log_dt), typed(grads.log_decay), typed(grads.frequency), typed(grads.B), typed(grads.C), typed(grads.D)};
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def("long_conv(Tensor x, Tensor filter, Tensor cu_seqlens, Tensor? history=None, Tensor? cu_history=None) -> Tensor");
  // Kernels.
  define_with_reference(m, "gated_long_conv(Tensor k, Tensor filter, Tensor? q, Tensor? v, int length) -> Tensor");
  define_with_reference(m,
                        "gated_long_conv_backward(Tensor grad_y, Tensor k, Tensor filter, Tensor? q, Tensor? v, int length) -> (Tensor "
                        "grad_k, Tensor grad_filter, Tensor grad_q, Tensor grad_v)");
  define_with_reference(
      m, "diagonal_filter(Tensor log_dt, Tensor log_decay, Tensor frequency, Tensor B, Tensor C, Tensor D, int taps) -> Tensor");
  define_with_reference(
      m,
      "diagonal_filter_backward(Tensor grad_filter, Tensor log_dt, Tensor log_decay, Tensor frequency, Tensor B, Tensor C, Tensor D, int "
      "taps) -> (Tensor grad_log_dt, Tensor grad_log_decay, Tensor grad_frequency, Tensor grad_B, Tensor grad_C, Tensor grad_D)");
}

// The CPU runs the references, which convolve by FFT.
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<conv>(m, "gated_long_conv");
  implement<conv_backward>(m, "gated_long_conv_backward");
  implement<filter_forward>(m, "diagonal_filter");
  implement<filter_backward>(m, "diagonal_filter_backward");
}

}  // namespace
}  // namespace based::python
