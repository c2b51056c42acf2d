// Inside of based/ops: linear attention of rows of one length by the weight of every pair of their tokens, in ATen.
#pragma once
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// y [rows, heads, length, head_dim]; q, k [rows, heads, length, features], v like y, all in the type of the sums. Rows begin from zero. For
// the gradient the weights are kept, a square of `length` for each row and head, each divided by its token's denominator.
Tensor attend_by_squares(const Tensor& q, const Tensor& k, const Tensor& v, double eps);

}  // namespace based::ops
