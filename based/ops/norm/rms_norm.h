// RMSNorm: alone, and of a sum that becomes the residual stream.
#pragma once
#include <tuple>

#include "based/kernels/norm/rms_norm.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// x · rsqrt(mean(x²) + eps) · weight over the last dimension, sums in fp32; the result has weight's type (x may be the fp32 residual).
// Differentiable.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor rms_norm_reference(const Tensor& x, const Tensor& weight, double eps);
// residual + x, and the rms_norm of it: one pass in the forward and one in the backward. Types as above; x has weight's type. Without a
// residual the sum is x, in fp32 where x is bf16. Gradients have weight's type, that of an fp32 sum too: the same tensor is the gradient of
// x, which is rounded in any case, so the backward reads and writes it once.
std::tuple<Tensor, Tensor> rms_norm_add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps);
std::tuple<Tensor, Tensor> rms_norm_add_reference(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps);
// residual += deferred (where given), += x in place, then its rms_norm: one pass where there is a kernel. x and deferred have weight's
// type; residual is contiguous. No gradient.
Tensor rms_norm_add_(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred = {});
// rms_norm of residual + x, where the sum is not stored: the caller passes x as the `deferred` of the next rms_norm_add_. So an fp32 stream
// is written by every other norm only, and bf16 is read instead. No gradient.
Tensor rms_norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps);
// rms_norm(x) · SiLU(gate), one pass where no gradient is requested; gate has y's shape and type.
Tensor rms_norm_gated(const Tensor& x, const Tensor& weight, double eps, const Tensor& gate);

// The operators.
struct RmsNorm {
  const Tensor& x;
  const Tensor& weight;
  double eps;
  BASED_OPERATOR("rms_norm -> y", x, weight, eps)
};
struct RmsNormForward {
  RmsNorm inputs;
  BASED_OPERATOR("rms_norm_forward -> y, inverse_rms", inputs.x, inputs.weight, inputs.eps)
};
struct RmsNormBackward {
  const Tensor& grad_y;
  const Tensor& x;
  const Tensor& weight;
  const Tensor& inverse_rms;
  BASED_OPERATOR("rms_norm_backward -> grad_x, grad_weight", grad_y, x, weight, inverse_rms)
};
struct RmsNormAdd {
  const OptionalTensor& residual;
  const Tensor& x;
  const Tensor& weight;
  double eps;
  BASED_OPERATOR("rms_norm_add -> sum, y", residual, x, weight, eps)
};
struct RmsNormAddForward {
  RmsNormAdd inputs;
  BASED_OPERATOR("rms_norm_add_forward -> sum, y, inverse_rms", inputs.residual, inputs.x, inputs.weight, inputs.eps)
};
// grad_x is the gradient of residual and of x.
struct RmsNormAddBackward {
  const OptionalTensor& grad_sum;
  const Tensor& grad_y;
  const Tensor& sum;
  const Tensor& weight;
  const Tensor& inverse_rms;
  BASED_OPERATOR("rms_norm_add_backward -> grad_x, grad_weight", grad_sum, grad_y, sum, weight, inverse_rms)
};
struct RmsNormAddInPlace {
  const Tensor& residual;
  const Tensor& x;
  const Tensor& weight;
  double eps;
  const OptionalTensor& deferred;
  BASED_OPERATOR("rms_norm_add_ -> y", written(residual), x, weight, eps, deferred)
};
struct RmsNormOfSum {
  const Tensor& residual;
  const Tensor& x;
  const Tensor& weight;
  double eps;
  BASED_OPERATOR("rms_norm_of_sum -> y", residual, x, weight, eps)
};
struct RmsNormGated {
  RmsNorm inputs;
  const Tensor& gate;
  BASED_OPERATOR("rms_norm_gated -> y", inputs.x, inputs.weight, inputs.eps, gate)
};

// The kernel's arguments for the norm of (x + deferred) + added, which is stored in `sum`. Each tensor may be undefined; x only where there
// is a sum.
struct NormedSum {
  const Tensor &x, &added, &deferred, &sum;
};
kernels::RmsNorm rms_norm_arguments(const NormedSum& terms, const Tensor& weight, double eps, const Tensor& y);

}  // namespace based::ops
