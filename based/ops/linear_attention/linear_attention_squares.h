// Internal to based/ops: linear attention in ATen, for rows of one length, by the weight of every pair of their tokens.
#pragma once
#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

// y [rows, heads, length, head_dim]; q, k [rows, heads, length, features], v like y, all in the type of the sums. Rows start from zero. The
// weights are saved for the backward: a square of `length` for each row and head, each weight divided by its token's denominator.
Tensor attend_by_squares(const Tensor& q, const Tensor& k, const Tensor& v, double eps);

}  // namespace based::ops
