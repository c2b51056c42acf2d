// The operator of functions of single numbers, see rowwise.h.
#pragma once
#include "based/kernels/activation.h"
#include "based/ops/operator.h"

namespace based::ops {

struct RowwiseActivation {
  const Tensor& x;
  int64_t function;  // a kernels::Activation
  double scale;
  const OptionalTensor& bias;
  const OptionalTensor& log_rate;
  bool in_sums;  // the result has the type of sums, not x's
  BASED_OPERATOR("rowwise_activation -> y", x, function, scale, bias, log_rate, in_sums)
};

// Of fp32 and bf16, by a device's kernel.
Tensor rowwise_activation_with(kernels::Status (*kernel)(const kernels::Activate&), const RowwiseActivation& in);

Tensor rowwise_activation_reference(const RowwiseActivation& in);

}  // namespace based::ops
