// Adjacent layers of a step that read the same values: they can be one launch.
#pragma once
#include <vector>

#include "based/decode/effects.h"
#include "based/kernels/linear/linear_step.h"

namespace based::decode {

// The longest run of layers first, first + 1, … before `end` that can be one launch: the same x, types and weight_is_constant, and no two
// layers write the same memory.
std::vector<kernels::Linear> layers_at_once(const std::vector<Unit>& units, size_t first, size_t end);

}  // namespace based::decode
