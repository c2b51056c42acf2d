// Without torch: the checks of the norms and the kernels' arguments, from tensors of LibTorch or of its stable interface.
#pragma once
#include "based/kernels/norm/layer_norm.h"
#include "based/kernels/norm/rms_norm.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Types and shapes: x [.., width], weight [width]. Throws Error.
template <class Tensor>
void check_rms_norm(const Tensor& x, const Tensor& weight) {
  constexpr const char* op = "rms_norm";
  require_floating(op, "x", x);
  require_floating(op, "weight", weight);
  require(x.dim() >= 1 && x.size(x.dim() - 1) >= 1, op, "x must have a last dimension of at least 1, got ", shape_text(x));
  require_shape(op, "weight", weight, {x.size(x.dim() - 1)});
}

// The same for the norm of residual + x: a residual of any type, x of weight's. Throws Error.
template <class OptionalTensor, class Tensor>
void check_rms_norm_sum(const char* op, const OptionalTensor& residual, const Tensor& x, const Tensor& weight) {
  check_rms_norm(residual ? *residual : x, weight);
  if (residual) require_shape(op, "x", x, residual->sizes());
  require_type(op, "x", x, weight.scalar_type());
}

// The sizes and the weight of a norm of `rows`, contiguous; x is `rows`.
template <class Tensor>
kernels::RmsNorm rms_norm_of_rows(const Tensor& rows, const Tensor& weight) {
  kernels::RmsNorm to;
  to.x = rows.const_data_ptr();
  to.weight = weight.const_data_ptr();
  to.width = weight.size(0);
  to.rows = rows.numel() / to.width;
  to.x_dtype = kernel_dtype(rows);
  to.dtype = kernel_dtype(weight);
  return to;
}

// The norm of (x + deferred) + added, which is stored in `sum`: a struct with these members, contiguous tensors that may be undefined; x
// only where there is a sum.
template <class Terms, class Tensor>
kernels::RmsNorm rms_norm_of_terms(const Terms& terms, const Tensor& weight, double eps, const Tensor& y) {
  kernels::RmsNorm to = rms_norm_of_rows(terms.x.defined() ? terms.x : terms.sum, weight);
  if (!terms.x.defined()) to.x = nullptr;
  if (terms.added.defined()) to.add = terms.added.const_data_ptr();
  if (terms.deferred.defined()) to.deferred = terms.deferred.const_data_ptr();
  if (terms.sum.defined()) to.sum = terms.sum.mutable_data_ptr();
  to.y = y.mutable_data_ptr();
  to.eps = static_cast<float>(eps);
  return to;
}

// Types and shapes: x [.., width], weight and bias [width]. Throws Error.
template <class Tensor>
void check_layer_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require_floating(op, "x", x);
  require(x.dim() >= 1 && x.size(x.dim() - 1) >= 1, op, "x must have a last dimension of at least 1, got ", shape_text(x));
  require_floating(op, "weight", weight);
  require_shape(op, "weight", weight, {x.size(x.dim() - 1)});
  require_like(op, "bias", bias, weight);
  require_shape(op, "bias", bias, {x.size(x.dim() - 1)});
}

// The same for the norm of residual + x: a residual of any type, x of weight's. Throws Error.
template <class OptionalTensor, class Tensor>
void check_layer_norm_sum(const char* op, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_layer_norm(op, residual ? *residual : x, weight, bias);
  if (residual) require_shape(op, "x", x, residual->sizes());
  require_type(op, "x", x, weight.scalar_type());
}

// The arguments that depend on the contiguous parameters (a struct with weight and bias) and on the sizes and type of `rows`.
template <class Parameters, class Tensor>
kernels::LayerNorm layer_norm_of_rows(const Parameters& parameters, const Tensor& rows, double eps) {
  kernels::LayerNorm to;
  to.weight = parameters.weight.const_data_ptr(), to.bias = parameters.bias.const_data_ptr();
  to.width = parameters.weight.size(0), to.rows = rows.numel() / to.width;
  to.eps = static_cast<float>(eps);
  to.x_dtype = kernel_dtype(rows), to.dtype = kernel_dtype(parameters.weight);
  return to;
}

}  // namespace based::ops
