// The remembering primitive: layers applied to some rows of a matrix, while the other rows stay as they are.
#pragma once
#include <vector>

#include "based/theory/base_conv.h"

namespace based::theory {

// Which rows are in use (0 … occupied-1, the rest is zero) and to which of them the layers are applied.
struct Region {
  int64_t occupied, first, rows;
};

// Three layers that do what `layer` does on a matrix of region.rows rows, to those rows. The paper counts eight.
std::vector<Layer> remember(const Region& region, const Layer& layer);
// The extended primitive: three layers for each of `layers`.
std::vector<Layer> remember(const Region& region, const std::vector<Layer>& layers);
int64_t rows_to_remember(const Region& region, const Layer& layer);  // the least N' for it
int64_t rows_to_remember(const Region& region, const std::vector<Layer>& layers);

}  // namespace based::theory
