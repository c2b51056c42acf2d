// Linear layers, with or without SwiGLU after them.
#pragma once
#include "based/kernels/linear/linear.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// x [rows, in] · weight[out, in]ᵀ + bias. With gradients off on the CPU, a kernel computes up to kBatchInvariantRows rows, and its result
// for a row does not depend on the other rows, bit for bit. So the results of a model's `step` do not depend on the batch. Differentiable.
constexpr int64_t kBatchInvariantRows = 64;
Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {});
Tensor linear_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {});
// swiglu(linear(…)), in one kernel where there is one: on a GPU for one row, and in bf16 on Hopper for few rows (kernels/linear/linear.h),
// more of them without a bias. Differentiable.
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
// The kernel's arguments. Rows may have any stride; the entries of a row and the bias are contiguous.
kernels::Linear linear_arguments(const Linear& in, const Tensor& y);
// The tensors of a linear layer's launch: inputs and result.
struct LinearLaunch {
  Tensor x, weight;
  OptionalTensor bias;
  Tensor y;
  kernels::Linear arguments;
};
// y has `columns` columns: the number of weight's rows, or half of it for SwiGLU.
LinearLaunch prepare_linear(const Linear& in, int64_t columns);
// Whether products of x [rows, in] with weight [out, in], and those of their gradients, are computed in fp32 rather than in x's type. This
// applies to bf16 on a CPU. Without AVX-512 LibTorch's products in bf16 take ten times as long. With AMX oneDNN reads beyond the end of a
// row whose length is no multiple of 32 and multiplies the next row's numbers by zero, so that NaN and infinity of a row spread to the row
// before it.
bool multiplies_in_fp32(const Tensor& x, const Tensor& weight);

}  // namespace based::ops
