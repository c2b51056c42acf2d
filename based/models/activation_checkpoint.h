// Memory for time in training: of a part of the model only the input is kept, and the backward pass computes the rest again.
#pragma once
#include <functional>

#include "based/ops/torch.h"

namespace based {

using torch::Tensor;

// body(x), whose parameters get the same gradients as without if it gives the same twice: it may draw from ops::Draws, not from a
// generator. `body` must stay valid until the backward pass, and x or something it was made from must require a gradient. Without gradients
// it is body(x).
Tensor recompute_in_backward(std::function<Tensor(const Tensor&)> body, const Tensor& x);

}  // namespace based
