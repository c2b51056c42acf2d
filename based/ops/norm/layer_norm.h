// LayerNorm: alone, of a sum that becomes the residual stream, and twice in a row on one residual stream.
#pragma once
#include <tuple>

#include "based/ops/framework/operator.h"

namespace based::ops {

// (x − mean(x)) · rsqrt(variance(x) + eps) · weight + bias over the last dimension, sums in fp32; x may be the fp32 residual of bf16
// weights. The result has weight's type. Differentiable.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor layer_norm_reference(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
// residual + x, and the layer_norm of it: on a GPU one pass in the forward and one in the backward. x has weight's type. Without a residual
// the sum is x, in fp32 where x is bf16. Gradients have weight's type, that of an fp32 sum too, as those of rms_norm_add.
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
  LayerNorm inputs;
  BASED_OPERATOR("layer_norm_forward -> y, mean, inverse_std", inputs.x, inputs.weight, inputs.bias, inputs.eps)
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
  LayerNormAdd inputs;
  BASED_OPERATOR("layer_norm_add_forward -> sum, y, mean, inverse_std", inputs.residual, inputs.x, inputs.weight, inputs.bias, inputs.eps)
};
// For both: grad_x, of weight's type, is the gradient of the sum and of its terms.
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

// s = residual + x, sum = s + layer_norm(s; weight, bias), y = layer_norm(sum; next_weight, next_bias): a residual layer that is a norm
// alone, and the next layer's norm. Values and gradients are those of layer_norm_add called twice; on a GPU they take one pass in the
// forward and one in the backward. As there, x and the gradients have the weights' type, and without a residual s is x. Without `keeps_sum`
// the sum is empty: [0].
struct LayerNormAddTwice {
  const OptionalTensor& residual;
  const Tensor& x;
  const Tensor& weight;
  const Tensor& bias;
  const Tensor& next_weight;
  const Tensor& next_bias;
  double eps;
  bool keeps_sum;
  BASED_OPERATOR("layer_norm_add_twice -> sum, y", residual, x, weight, bias, next_weight, next_bias, eps, keeps_sum)
};
Result<LayerNormAddTwice> layer_norm_add_twice(const LayerNormAddTwice& in);

// mean and inverse_std [2, rows…] of both norms.
struct LayerNormAddTwiceForward {
  LayerNormAddTwice inputs;
  BASED_OPERATOR("layer_norm_add_twice_forward -> first_sum, sum, y, mean, inverse_std", inputs.residual, inputs.x, inputs.weight,
                 inputs.bias, inputs.next_weight, inputs.next_bias, inputs.eps, inputs.keeps_sum)
};
// grad_x, of the weights' type, is the gradient of s and of its terms.
struct LayerNormAddTwiceBackward {
  const OptionalTensor& grad_sum;
  const Tensor& grad_y;
  const Tensor& first_sum;
  const Tensor& weight;
  const Tensor& bias;
  const Tensor& next_weight;
  const Tensor& next_bias;
  const Tensor& mean;
  const Tensor& inverse_std;
  BASED_OPERATOR("layer_norm_add_twice_backward -> grad_x, grad_weight, grad_bias, grad_next_weight, grad_next_bias", grad_sum, grad_y,
                 first_sum, weight, bias, next_weight, next_bias, mean, inverse_std)
};

}  // namespace based::ops
