// The backward of an operator without a kernel on its device: the reference runs again and ATen's autograd differentiates it.
#pragma once
#include <functional>
#include <vector>

#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

// Gradients of Σ outputs·grad_outputs with respect to `inputs`, where outputs = function(inputs). Undefined grad_outputs are skipped, and
// the gradients of undefined inputs are undefined. Works under no_grad and inside operators.
std::vector<Tensor> gradients_by_autograd(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                                          const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs);

}  // namespace based::ops
