// RMSNorm, alone and of a sum that goes on as the residual stream.
#pragma once
#include <tuple>

#include "based/kernels/pointwise.h"
#include "based/ops/operator.h"

namespace based::ops {

// x · rsqrt(mean(x²) + eps) · weight over the last dimension, sums in fp32; the result has weight's type (x may be the fp32 residual).
// Differentiable.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor rms_norm_reference(const Tensor& x, const Tensor& weight, double eps);
// residual + x, and the rms_norm of it: one pass there and one back. Types as above; x has weight's. Without a residual the sum is x, in
// fp32 where x is bf16. Gradients have weight's type, that of an fp32 sum too: it is the gradient of x, which is rounded in any case, so
// that the backward reads and writes it once.
std::tuple<Tensor, Tensor> rms_norm_add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps);
std::tuple<Tensor, Tensor> rms_norm_add_reference(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps);
// residual += deferred (where given), += x in place, then its rms_norm: one pass where there is a kernel. x and deferred have weight's
// type; residual is contiguous. No gradient.
Tensor rms_norm_add_(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred = {});
// rms_norm of residual + x, which is not kept: x is the `deferred` of the next rms_norm_add_. An fp32 stream is then written every other
// time, and bf16 read instead. No gradient.
Tensor rms_norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps);
// rms_norm(x) · SiLU(gate), one pass where no gradient is asked for; gate has y's shape and type.
Tensor rms_norm_gated(const Tensor& x, const Tensor& weight, double eps, const Tensor& gate);

// The operators.
struct RmsNorm {
  const Tensor& x;
  const Tensor& weight;
  double eps;
  BASED_OPERATOR("rms_norm -> y", x, weight, eps)
};
struct RmsNormForward {
  RmsNorm of;
  BASED_OPERATOR("rms_norm_forward -> y, inverse_rms", of.x, of.weight, of.eps)
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
  RmsNormAdd of;
  BASED_OPERATOR("rms_norm_add_forward -> sum, y, inverse_rms", of.residual, of.x, of.weight, of.eps)
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
  RmsNorm of;
  const Tensor& gate;
  BASED_OPERATOR("rms_norm_gated -> y", of.x, of.weight, of.eps, gate)
};

// Them with a device's kernels.
struct RmsNormKernels {
  kernels::Status (*forward)(const kernels::RmsNorm&);
  int64_t (*backward_scratch)(const kernels::RmsNormBackward&);
  kernels::Status (*backward)(const kernels::RmsNormBackward&, void* scratch);
  int64_t width = kNoLimit;  // the largest that they take
};
Result<RmsNormForward> rms_norm_forward_with(const RmsNormKernels& table, const RmsNorm& in);
Result<RmsNormBackward> rms_norm_backward_with(const RmsNormKernels& table, const RmsNormBackward& in);
Tensor rms_norm_gated_with(const RmsNormKernels& table, const RmsNormGated& in);
Result<RmsNormAddForward> rms_norm_add_forward_with(const RmsNormKernels& table, const RmsNormAdd& in);
Result<RmsNormAddBackward> rms_norm_add_backward_with(const RmsNormKernels& table, const RmsNormAddBackward& in);
Tensor rms_norm_add_in_place_with(const RmsNormKernels& table, const RmsNormAddInPlace& in);
Tensor rms_norm_of_sum_with(const RmsNormKernels& table, const RmsNormOfSum& in);

// What a kernel is told: the norm of (x + deferred) + added, which is left in `sum`; each may be undefined, x where there is a sum.
struct NormedSum {
  const Tensor &x, &added, &deferred, &sum;
};
kernels::RmsNorm rms_norm_arguments(const NormedSum& of, const Tensor& weight, double eps, const Tensor& y);

}  // namespace based::ops
