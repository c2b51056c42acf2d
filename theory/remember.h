// The remembering primitive: applies layers to some rows of a matrix and leaves the other rows unchanged.
#pragma once
#include <vector>

#include "theory/base_conv.h"

namespace based::theory {

// Rows 0 … occupied-1 are in use, the others are zero. Layers are applied to `rows` rows from `first` on.
struct Region {
  int64_t occupied, first, rows;
};

// Three layers that apply `layer`, a layer for matrices of region.rows rows, to the region. The paper counts eight.
std::vector<Layer> remember(const Region& region, const Layer& layer);
// The extended primitive: three layers for each of `layers`.
std::vector<Layer> remember(const Region& region, const std::vector<Layer>& layers);
int64_t rows_to_remember(const Region& region, const Layer& layer);  // the smallest N'
int64_t rows_to_remember(const Region& region, const std::vector<Layer>& layers);

}  // namespace based::theory
