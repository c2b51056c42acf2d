// Two LayerNorms of one residual stream, the second one of what the first one was added to.
#pragma once
#include "based/ops/layer_norm.h"

namespace based::ops {

// s = residual + x, sum = s + layer_norm(s; weight, bias), y = layer_norm(sum; next_weight, next_bias): a layer that adds a norm alone, and
// the norm behind it. Values and gradients are those of layer_norm_add called twice; on a GPU they take one pass there and one back. As
// there, x has the weights' type, which the gradients have too, and without a residual s is x. Without `keeps_sum` the sum is empty: [0].
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

// mean and inverse_std: of both norms, [2, rows…].
struct LayerNormAddTwiceForward {
  LayerNormAddTwice of;
  BASED_OPERATOR("layer_norm_add_twice_forward -> first_sum, sum, y, mean, inverse_std", of.residual, of.x, of.weight, of.bias,
                 of.next_weight, of.next_bias, of.eps, of.keeps_sum)
};
// grad_x, of the weights' type, is the gradient of s and of what it was added up from.
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

// Them with a device's kernels.
struct LayerNormTwiceKernels {
  bool (*supports)(int64_t width, kernels::DType x_dtype, kernels::DType dtype);
  kernels::Status (*forward)(const kernels::LayerNormTwice&);
  int64_t (*backward_scratch)(const kernels::LayerNormTwiceBackward&);
  kernels::Status (*backward)(const kernels::LayerNormTwiceBackward&, void* scratch);
};
Result<LayerNormAddTwiceForward> layer_norm_add_twice_forward_with(const LayerNormTwiceKernels& table, const LayerNormAddTwice& in);
Result<LayerNormAddTwiceBackward> layer_norm_add_twice_backward_with(const LayerNormTwiceKernels& table,
                                                                     const LayerNormAddTwiceBackward& in);

}  // namespace based::ops
