// Activation checkpointing: of a part of the model only the input is stored, and the backward pass computes the rest again. This saves
// memory and costs time.
#pragma once
#include <functional>

#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

// Returns body(x) and recomputes it in the backward pass. `body` must give the same result twice, so it may draw random numbers from
// ops::Draws but not from a generator; then all gradients are the same as without checkpointing. `body` must stay valid until the backward
// pass, and x must require a gradient. With gradients off, it only returns body(x).
Tensor recompute_in_backward(std::function<Tensor(const Tensor&)> body, const Tensor& x);

}  // namespace based
