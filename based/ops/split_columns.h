#pragma once
#include <optional>
#include <vector>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// x [tokens, Σ widths] as views of its columns, one a width. Unlike with narrow, gradients that lie side by side in one tensor, as those of
// short_conv do for halves of one, become x's gradient as they are, and others are put side by side in one pass.
std::vector<Tensor> split_columns(const Tensor& x, at::IntArrayRef widths);

// The view [tokens, Σ widths] whose columns these [tokens, width] are, where they lie side by side in one tensor.
std::optional<Tensor> joined_columns(const std::vector<Tensor>& parts);
// That view, or else a copy of them side by side.
Tensor join_columns(const std::vector<Tensor>& parts);

}  // namespace based::ops
