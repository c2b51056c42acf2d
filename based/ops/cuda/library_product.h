// Products of many rows by cuBLAS.
#pragma once
#include "based/ops/arguments.h"
#include "based/ops/torch.h"

namespace based::ops {

// Where there are enough rows for the device, in bf16, without a workspace: with one, cuBLAS prefers kernels that want four bytes cleared
// first, a launch of its own before each product. Else ATen's.

// x·weightᵀ + bias, x [rows, in], weight [out, in], bias [out].
at::Tensor linear_by_library(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias);
// Its gradient by x: grad_y·weight, grad_y [rows, out].
at::Tensor input_gradient_by_library(const at::Tensor& grad_y, const at::Tensor& weight);
// sum += aᵀ·b, or the first of them: sum [m, n] in fp32, contiguous, a [rows, m], b [rows, n] in bf16. False where cuBLAS has no kernel.
bool add_product_by_library(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool first);

}  // namespace based::ops
