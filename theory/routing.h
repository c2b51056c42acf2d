// Arbitrary rearrangements of rows, including copies, by layers that only shift and mask: O(log rows) layers on rows x 3.
#pragma once
#include <vector>

#include "theory/base_conv.h"

namespace based::theory {

inline constexpr int64_t kRouted = 3;  // columns: rows that stay, rows moved down and rows moved up. Between stages all three are equal.

// Row i becomes row source[i] of the input, or 0 if source[i] is -1. There are source.size() rows, a power of two. Takes at most
// 10·log₂(rows) layers: the rows in use are compacted, spread, copied and permuted.
std::vector<Layer> route_rows(const std::vector<int64_t>& source);

Layer to_routed();    // copies the first column to all three; comes before the layers of route_rows
Layer join_routed();  // copies the sum of the three columns to all three

}  // namespace based::theory
