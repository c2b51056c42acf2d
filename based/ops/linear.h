// Linear layers, and those that SwiGLU follows.
#pragma once
#include "based/kernels/linear.h"
#include "based/ops/operator.h"

namespace based::ops {

// x [rows, in] · weight[out, in]ᵀ + bias. With gradients off on the CPU, up to kBatchInvariantRows rows go through a kernel whose result
// for a row does not depend on the other rows, bit for bit; this is what makes `step` independent of the batch. Differentiable.
constexpr int64_t kBatchInvariantRows = 64;
Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {});
Tensor linear_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {});
// swiglu(linear(…)), at once where a kernel does that: on a GPU one row, and in bf16 on Hopper few rows (kernels/linear.h), more
// of them without a bias. Differentiable.
Tensor linear_swiglu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {});
Tensor linear_swiglu_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {});

// The operators.
struct Linear {
  const Tensor& x;
  const Tensor& weight;
  const OptionalTensor& bias;
  BASED_OPERATOR("linear -> y", x, weight, bias)
};
struct LinearSwiglu {
  Linear layer;
  BASED_OPERATOR("linear_swiglu -> y", layer.x, layer.weight, layer.bias)
};

// Shapes and types. Throws Error.
void check_linear(const Linear& in);
// What a kernel is told; rows may lie any distance apart, a row's entries and the bias side by side.
kernels::Linear linear_arguments(const Linear& in, const Tensor& y);
// Memory of a linear layer's launch, its result among it.
struct LinearLaunch {
  Tensor x, weight;
  OptionalTensor bias;
  Tensor y;
  kernels::Linear arguments;
};
// `columns` of y: the weight's rows, or half of them for SwiGLU.
LinearLaunch prepare_linear(const Linear& in, int64_t columns);
// Whether products of x [rows, in] with weight [out, in], and those of their gradients, are made in fp32 rather than in x's type. That is
// for bf16 on a CPU: without AVX-512 LibTorch's products in bf16 take ten times as long; with AMX oneDNN reads beyond the end of a row
// whose length is no multiple of 32 and multiplies the next row's numbers by zero, so that NaN and infinity of one row reach the one before
// it.
bool multiplies_in_fp32(const Tensor& x, const Tensor& weight);

}  // namespace based::ops
