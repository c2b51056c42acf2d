// The operator of functions of single numbers; rowwise.h has the functions that callers use.
#pragma once
#include "based/kernels/pointwise/activation.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// function(x + bias) · scale · e^log_rate for every number of x, see rowwise::gate().
struct RowwiseActivation {
  const Tensor& x;
  int64_t function;  // a kernels::Activation
  double scale;
  const OptionalTensor& bias;
  const OptionalTensor& log_rate;
  bool in_sums;  // the result has the type of sums, not x's
  BASED_OPERATOR("rowwise_activation -> y", x, function, scale, bias, log_rate, in_sums)
};

// function(x), of x's type.
Tensor rowwise_activation(const Tensor& x, kernels::Activation function);

}  // namespace based::ops
