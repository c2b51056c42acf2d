// Without torch: the checks of a linear layer and the kernels' arguments, from tensors of LibTorch or of its stable interface. Layer is a
// struct with the members of ops::Linear.
#pragma once
#include "based/kernels/linear/linear.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Shapes, types and devices. Throws Error.
template <class Layer>
void check_linear_tensors(const Layer& in) {
  constexpr const char* op = "linear";
  const auto& [x, weight, bias] = in;
  require_floating(op, "x", x);
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "weight", weight, x);
  require_shape(op, "weight", weight, {-1, x.size(1)});
  if (!bias) return;
  require_like(op, "bias", *bias, x);
  require_shape(op, "bias", *bias, {weight.size(0)});
}

// Rows may have any stride; the entries of a row and the bias are contiguous.
template <class Layer, class Tensor>
kernels::Linear linear_tensor_arguments(const Layer& in, const Tensor& y) {
  const auto& [x, weight, bias] = in;
  kernels::Linear to;
  to.x = x.const_data_ptr();
  to.weight = weight.const_data_ptr();
  if (bias) to.bias = bias->const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.rows = x.size(0), to.in = x.size(1), to.out = weight.size(0);
  to.x_stride = x.stride(0), to.weight_stride = weight.stride(0), to.y_stride = y.stride(0);
  to.dtype = kernel_dtype(x), to.y_dtype = kernel_dtype(y);
  return to;
}

// Shapes, types and devices of a gated MLP: a struct with the members of ops::GatedMlp. Throws Error.
template <class Mlp>
void check_gated_mlp_tensors(const Mlp& in) {
  constexpr const char* op = "gated_mlp";
  const auto& [x, weight_in, weight_out] = in;
  require_floating(op, "x", x);
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "weight_in", weight_in, x);
  require_shape(op, "weight_in", weight_in, {-1, x.size(1)});
  require(weight_in.size(0) % 2 == 0, op, "weight_in must have an even number of rows, got ", weight_in.size(0));
  require_like(op, "weight_out", weight_out, x);
  require_shape(op, "weight_out", weight_out, {-1, weight_in.size(0) / 2});
}

}  // namespace based::ops
