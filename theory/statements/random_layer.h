// A layer with random parameters, for properties of all layers.
#pragma once
#include "based/core/random.h"
#include "theory/base_conv.h"

namespace based::theory {

// A dense layer with entries of -1 … 1. The filter reaches up and down, and has a window of several offsets in some places.
inline Layer random_layer(Random& random, Size size) {
  Layer layer{"random", {}, {}, {}, {}};
  for (int64_t i = 0; i < size.columns; ++i)
    for (int64_t j = 0; j < size.columns; ++j)
      if (const int64_t value = random.between(-1, 1)) layer.weight.push_back({i, j, value});
  for (int64_t i = 0; i < size.rows; ++i) {
    for (int64_t j = 0; j < size.columns; ++j) {
      layer.gate_bias.push_back({i, 1, j, 1, random.between(-1, 1)});
      layer.filter_bias.push_back({i, 1, j, 1, random.between(-1, 1)});
    }
  }
  for (int64_t offset = 1 - size.rows; offset < size.rows; ++offset)
    for (int64_t j = 0; j < size.columns; ++j)
      if (const int64_t value = random.between(-1, 1)) layer.filter.push_back({offset, 1, value, j, 1});
  layer.filter.push_back({random.between(1 - size.rows, 0), random.between(1, size.rows)});
  return layer;
}

}  // namespace based::theory
