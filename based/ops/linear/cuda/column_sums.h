// The gradient of a bias.
#pragma once
#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

// The sum of x's rows: x [rows, columns] -> [columns], summed in fp32.
Tensor column_sums(const Tensor& x);

}  // namespace based::ops
