// Without torch: the checks of elementwise functions and the kernels' arguments, from tensors of LibTorch or of its stable interface.
#pragma once
#include "based/kernels/pointwise/activation.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Op is a struct with the members of RowwiseActivation. Throws Error.
template <class Op>
void check_rowwise_activation(const Op& in) {
  constexpr const char* op = "rowwise_activation";
  const auto& [x, function, scale, bias, log_rate, in_sums] = in;
  require_floating(op, "x", x);
  require(x.dim() >= 1, op, "x must have rows, got a single number");
  require(function >= 0 && function <= static_cast<int64_t>(kernels::Activation::elu_plus_one), op, "function must be 0..5, got ",
          function);
  const auto check_factors = [&, &like = x](const char* name, const auto& factors) {
    if (!factors) return;
    require(like.dim() <= 2, op, name, " goes with x of [rows, width], got ", shape_text(like));
    require(factors->scalar_type() == like.scalar_type() || factors->scalar_type() == sum_type(like), op, name, " must be ",
            type_name(like.scalar_type()), " or ", type_name(sum_type(like)), ", got ", type_name(factors->scalar_type()));
    require_shape(op, name, *factors, {like.dim() == 1 ? 1 : like.size(like.dim() - 1)});
  };
  check_factors("bias", bias);
  check_factors("log_rate", log_rate);
}

// x of two dimensions with contiguous columns, or contiguous; y and the factors contiguous, the factors of one type.
template <class Op, class Tensor>
kernels::Activate activate_arguments(const Op& in, const Tensor& y) {
  const auto& [x, function, scale, bias, log_rate, in_sums] = in;
  kernels::Activate to;
  to.x = x.const_data_ptr(), to.y = y.mutable_data_ptr();
  to.rows = x.size(0), to.width = to.rows == 0 ? 0 : x.numel() / to.rows;
  to.x_stride = x.dim() == 2 ? x.stride(0) : to.width;
  to.dtype = kernel_dtype(x), to.y_dtype = kernel_dtype(y);
  if (bias) to.bias = bias->const_data_ptr(), to.factor_dtype = kernel_dtype(*bias);
  if (log_rate) to.log_rate = log_rate->const_data_ptr(), to.factor_dtype = kernel_dtype(*log_rate);
  to.function = static_cast<kernels::Activation>(function), to.scale = static_cast<float>(scale);
  return to;
}

// h [rows, 2·width]. Throws Error.
template <class Tensor>
void check_swiglu(const Tensor& h) {
  constexpr const char* op = "swiglu";
  require_floating(op, "h", h);
  require_shape(op, "h", h, {-1, -1});
  require(h.size(1) % 2 == 0, op, "h must have an even number of columns, got ", h.size(1));
}

}  // namespace based::ops
