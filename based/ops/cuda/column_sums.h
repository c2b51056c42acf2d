// The gradient of a bias.
#pragma once
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// x [rows, columns] -> [columns], added up in fp32.
Tensor column_sums(const Tensor& x);

}  // namespace based::ops
