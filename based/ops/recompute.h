// The backward of an operator on a device that has no kernel for it: its reference is run again and differentiated by ATen's autograd.
#pragma once
#include <functional>
#include <vector>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// Gradients of Σ outputs·grad_outputs with respect to `inputs`, where outputs = function(inputs). Undefined inputs and undefined
// grad_outputs are passed over; their gradients are undefined. Works under no_grad and inside operators.
std::vector<Tensor> gradients_by_autograd(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                                          const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs);

}  // namespace based::ops
