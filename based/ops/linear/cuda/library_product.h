// Products of many rows by cuBLAS.
#pragma once
#include "based/ops/framework/arguments.h"
#include "based/runtime/torch.h"

namespace based::ops {

// cuBLAS products in bf16 without a workspace, where there are enough rows for the device; else ATen's. With a workspace cuBLAS prefers
// kernels that need four bytes cleared first, which costs another launch before each product.

// x·weightᵀ + bias, x [rows, in], weight [out, in], bias [out].
at::Tensor linear_by_library(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias);
// The gradient of x: grad_y·weight, grad_y [rows, out].
at::Tensor input_gradient_by_library(const at::Tensor& grad_y, const at::Tensor& weight);
// sum += aᵀ·b; with `first`, sum = aᵀ·b: sum [m, n] in fp32, contiguous, a [rows, m], b [rows, n] in bf16. False where cuBLAS has no
// kernel.
bool add_product_by_library(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool first);

}  // namespace based::ops
