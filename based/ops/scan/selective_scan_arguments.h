// Without torch: the checks of the selective scan and the kernels' arguments, from tensors of LibTorch or of its stable interface. Inputs
// is a struct with the members of SelectiveScanInputs.
#pragma once
#include "based/kernels/scan/scan.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Shapes, types and devices. Throws Error.
template <class Inputs>
void check_selective_scan_inputs(const char* op, const Inputs& in) {
  using kernels::kSelectiveScanStates;
  require_floating(op, "x", in.x);
  require_shape(op, "x", in.x, {-1, -1});
  const int64_t tokens = in.x.size(0), channels = in.x.size(1);
  const auto require_tensor = [&](const char* name, const auto& tensor, std::initializer_list<int64_t> sizes) {
    require_like(op, name, tensor, in.x);
    require_shape(op, name, tensor, sizes);
  };
  require_tensor("dt", in.dt, {tokens, channels});
  require_tensor("A_log", in.A_log, {channels, -1});
  const int64_t size = in.A_log.size(1);
  require(size >= 1 && size <= kSelectiveScanStates, op, "A_log must have 1..", kSelectiveScanStates, " columns, got ", size);
  require_tensor("B", in.B, {tokens, -1, size});
  const int64_t groups = in.B.size(1);
  require(groups >= 1 && channels % groups == 0, op, "channels, ", channels, ", must be a multiple of B's groups, got ", groups);
  require_tensor("C", in.C, {tokens, groups, size});
  if (in.D) require_tensor("D", *in.D, {channels});
  if (in.z) require_tensor("z", *in.z, {tokens, channels});
  if (in.dt_bias) require_tensor("dt_bias", *in.dt_bias, {channels});
}

// A state [slots, channels, state_size] in the type of sums; slots −1: any number.
template <class Inputs, class Tensor>
void check_selective_scan_state(const char* op, const char* name, const Tensor& state, int64_t slots, const Inputs& in) {
  require_type(op, name, state, sum_type(in.x));
  require_shape(op, name, state, {slots, in.x.size(1), in.A_log.size(1)});
}

// The tensors' columns are contiguous. One row a token, as in a step; y and the state are not set.
template <class Inputs>
kernels::SelectiveScan selective_scan_arguments(const Inputs& in) {
  const auto data = [](const auto& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; };
  kernels::SelectiveScan to;
  to.x = in.x.const_data_ptr(), to.dt = in.dt.const_data_ptr(), to.z = data(in.z), to.A_log = in.A_log.const_data_ptr();
  to.B = in.B.const_data_ptr(), to.C = in.C.const_data_ptr(), to.D = data(in.D), to.dt_bias = data(in.dt_bias);
  to.tokens = to.rows = in.x.size(0);
  to.channels = in.x.size(1), to.groups = in.B.size(1), to.state_size = in.A_log.size(1);
  to.x_stride = in.x.stride(0), to.dt_stride = in.dt.stride(0), to.z_stride = in.z ? in.z->stride(0) : 0;
  to.b_stride = in.B.stride(0), to.c_stride = in.C.stride(0);
  to.softplus = in.softplus;
  to.dtype = kernel_dtype(in.x);
  return to;
}

}  // namespace based::ops
