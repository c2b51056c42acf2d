// LayerNorm, alone and of a sum that goes on as the residual stream.
#pragma once
#include <tuple>

#include "based/kernels/layer_norm.h"
#include "based/ops/operator.h"

namespace based::ops {

// (x − mean(x)) · rsqrt(variance(x) + eps) · weight + bias over the last dimension, sums in fp32; x may be the fp32 residual of bf16
// weights. The result has weight's type. Differentiable.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor layer_norm_reference(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
// residual + x, and the layer_norm of it: on a GPU one pass there and one back. x has weight's type. Without a residual the sum is x, in
// fp32 where x is bf16. Gradients have weight's type, that of an fp32 sum too, as those of rms_norm_add.
std::tuple<Tensor, Tensor> layer_norm_add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                          double eps);
// residual += x in place, then its layer_norm; residual is contiguous. No gradient.
Tensor layer_norm_add_(const Tensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);

// The operators.
struct LayerNorm {
  const Tensor& x;
  const Tensor& weight;
  const Tensor& bias;
  double eps;
  BASED_OPERATOR("layer_norm -> y", x, weight, bias, eps)
};
struct LayerNormForward {
  LayerNorm of;
  BASED_OPERATOR("layer_norm_forward -> y, mean, inverse_std", of.x, of.weight, of.bias, of.eps)
};
struct LayerNormAdd {
  const OptionalTensor& residual;
  const Tensor& x;
  const Tensor& weight;
  const Tensor& bias;
  double eps;
  BASED_OPERATOR("layer_norm_add -> sum, y", residual, x, weight, bias, eps)
};
struct LayerNormAddForward {
  LayerNormAdd of;
  BASED_OPERATOR("layer_norm_add_forward -> sum, y, mean, inverse_std", of.residual, of.x, of.weight, of.bias, of.eps)
};
// Of both: grad_x, of weight's type, is the gradient of the sum and of what it was added up from.
struct LayerNormBackward {
  const OptionalTensor& grad_sum;
  const Tensor& grad_y;
  const Tensor& sum;
  const Tensor& weight;
  const Tensor& bias;
  const Tensor& mean;
  const Tensor& inverse_std;
  BASED_OPERATOR("layer_norm_backward -> grad_x, grad_weight, grad_bias", grad_sum, grad_y, sum, weight, bias, mean, inverse_std)
};
struct LayerNormAddInPlace {
  const Tensor& residual;
  const Tensor& x;
  const Tensor& weight;
  const Tensor& bias;
  double eps;
  BASED_OPERATOR("layer_norm_add_ -> y", written(residual), x, weight, bias, eps)
};

// Error unless x, weight and bias are those of a norm, or of one of residual + x.
void check_layer_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias);
void check_layer_norm_of_sum(const char* op, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias);

// Them with a device's kernels.
struct LayerNormKernels {
  bool (*supports)(int64_t width, kernels::DType x_dtype, kernels::DType dtype);
  kernels::Status (*forward)(const kernels::LayerNorm&);
  int64_t (*backward_scratch)(const kernels::LayerNormBackward&);
  kernels::Status (*backward)(const kernels::LayerNormBackward&, void* scratch);
};
Result<LayerNormForward> layer_norm_forward_with(const LayerNormKernels& table, const LayerNorm& in);
Result<LayerNormAddForward> layer_norm_add_forward_with(const LayerNormKernels& table, const LayerNormAdd& in);
Result<LayerNormBackward> layer_norm_backward_with(const LayerNormKernels& table, const LayerNormBackward& in);
Tensor layer_norm_add_in_place_with(const LayerNormKernels& table, const LayerNormAddInPlace& in);

}  // namespace based::ops
