// Columns of a matrix as tensors of their own, and back.
#pragma once
#include <optional>
#include <vector>

#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

// x [tokens, Σ widths] as views of its columns, one for each width. Unlike with narrow, gradients that are adjacent columns of one tensor
// become x's gradient without a copy; the gradients of short_conv for two halves are such columns. Other gradients are joined in one pass.
std::vector<Tensor> split_columns(const Tensor& x, at::IntArrayRef widths);

// The view [tokens, Σ widths] over these [tokens, width], where they are adjacent columns of one tensor.
std::optional<Tensor> joined_columns(const std::vector<Tensor>& parts);
// That view, or else a copy: the parts concatenated.
Tensor join_columns(const std::vector<Tensor>& parts);

}  // namespace based::ops
