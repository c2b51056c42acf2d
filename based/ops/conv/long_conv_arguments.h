// Without torch: the checks of the gated long convolution and of the diagonal filter and the kernels' arguments, from tensors of LibTorch
// or of its stable interface. Op is a struct with the members of GatedLongConv; Poles of DiagonalPoles.
#pragma once
#include "based/kernels/conv/diagonal_filter.h"
#include "based/kernels/conv/gated_long_conv.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Shapes, types and devices. Throws Error.
template <class Op>
void check_gated_long_conv(const Op& in) {
  constexpr const char* op = "gated_long_conv";
  const auto& [k, filter, q, v, length] = in;
  require_floating(op, "k", k);
  require_shape(op, "k", k, {-1, -1});
  require_type(op, "filter", filter, sum_type(k));
  require_device(op, "filter", filter, k);
  require_shape(op, "filter", filter, {-1, -1});
  const int64_t channels = k.size(1), filters = filter.size(0);
  require(filters >= 1 && channels % filters == 0, op, "channels, ", channels, ", must be a multiple of the filters, got ", filters);
  require(filter.size(1) >= 1, op, "taps must be at least 1, got ", filter.size(1));
  const auto require_gate = [&, &like = k](const char* name, const auto& gate) {
    require(gate.has_value() || filters == channels, op, name, " may be absent only where each channel has a filter, got ", filters, " of ",
            channels);
    if (!gate) return;
    require_like(op, name, *gate, like);
    require_shape(op, name, *gate, like.sizes());
  };
  require_gate("q", q);
  require_gate("v", v);
  require(length >= 1 && k.size(0) % length == 0, op, "tokens, ", k.size(0), ", must be a multiple of the length, got ", length);
}

// Whether products take one TF32 part of each operand: where `allowed`, and for inputs of 16 bits, which one part holds; results are
// rounded to 16 bits, too.
template <class Tensor>
bool takes_one_tf32_part(const Tensor& k, bool allowed) {
  return allowed || k.element_size() == 2;
}

// Tensors in fp32 with contiguous columns, and a contiguous filter. y and single_tf32 are not set.
template <class Op>
kernels::GatedLongConv gated_long_conv_arguments(const Op& in) {
  const auto& [k, filter, q, v, length] = in;
  kernels::GatedLongConv to;
  to.k = k.template const_data_ptr<float>(), to.k_stride = k.stride(0), to.filter = filter.template const_data_ptr<float>();
  if (q) to.q = q->template const_data_ptr<float>(), to.q_stride = q->stride(0);
  if (v) to.v = v->template const_data_ptr<float>(), to.v_stride = v->stride(0);
  to.rows = k.size(0) / length, to.length = length, to.channels = to.y_stride = k.size(1), to.taps = filter.size(1);
  to.head_dim = static_cast<int32_t>(k.size(1) / filter.size(0));
  return to;
}

// Shapes, types and devices. Throws Error.
template <class Poles>
void check_diagonal_filter(const Poles& parameters, int64_t taps) {
  constexpr const char* op = "diagonal_filter";
  const auto& [log_dt, log_decay, frequency, B, C, D] = parameters;
  require_floating(op, "log_dt", log_dt);
  require_shape(op, "log_dt", log_dt, {-1});
  const int64_t groups = log_dt.size(0);
  const auto require_tensor = [&, &first = log_dt](const char* name, const auto& tensor, std::initializer_list<int64_t> sizes) {
    require_like(op, name, tensor, first);
    require_shape(op, name, tensor, sizes);
  };
  require_tensor("log_decay", log_decay, {groups, -1});
  const int64_t poles = log_decay.size(1);
  require(poles >= 1 && poles <= kernels::kDiagonalFilterPoles, op, "poles must be 1..", kernels::kDiagonalFilterPoles, ", got ", poles);
  require_tensor("frequency", frequency, {groups, poles});
  require_tensor("B", B, {groups, poles, 2});
  require_tensor("C", C, {groups, poles, 2});
  require_tensor("D", D, {groups});
  require(taps >= 1, op, "taps must be at least 1, got ", taps);
}

// Contiguous parameters in fp32. The filter is not set.
template <class Poles>
kernels::DiagonalFilter diagonal_filter_arguments(const Poles& in, int64_t taps) {
  kernels::DiagonalFilter to;
  to.log_dt = in.log_dt.template const_data_ptr<float>(), to.log_decay = in.log_decay.template const_data_ptr<float>();
  to.frequency = in.frequency.template const_data_ptr<float>(), to.B = in.B.template const_data_ptr<float>();
  to.C = in.C.template const_data_ptr<float>(), to.D = in.D.template const_data_ptr<float>();
  to.groups = in.log_decay.size(0), to.poles = in.log_decay.size(1), to.taps = taps;
  return to;
}

// Contiguous gradients in fp32, one for each parameter.
template <class Poles>
void set_diagonal_filter_gradients(kernels::DiagonalFilterBackward& to, const Poles& grads) {
  to.grad_log_dt = grads.log_dt.template mutable_data_ptr<float>(), to.grad_log_decay = grads.log_decay.template mutable_data_ptr<float>();
  to.grad_frequency = grads.frequency.template mutable_data_ptr<float>(), to.grad_B = grads.B.template mutable_data_ptr<float>();
  to.grad_C = grads.C.template mutable_data_ptr<float>(), to.grad_D = grads.D.template mutable_data_ptr<float>();
}

}  // namespace based::ops
