// Layers of a step that read the same values, one right behind the other: they can be one launch.
#pragma once
#include <vector>

#include "based/decode/effects.h"
#include "based/kernels/linear_hopper.h"

namespace based::decode {

// Of the layers first, first + 1, … before `behind`, those from `first` on that one launch can have: all of the same x and types, their
// weights constant or not as the first one's, and no two that write the same memory.
std::vector<kernels::Linear> layers_at_once(const std::vector<Unit>& units, size_t first, size_t behind);

// Arguments of kernels::cuda::linears_of_one_row.
struct LayersOfOneRow {
  std::vector<kernels::Linear> layers;
};

}  // namespace based::decode
