// Any rearrangement of rows, copies included, by layers that only shift and mask: O(log rows) of them on rows x 3.
#pragma once
#include <vector>

#include "based/theory/base_conv.h"

namespace based::theory {

inline constexpr int64_t kRouted =
    3;  // columns: what stays, what comes from above, what comes from below. All hold the same between stages.

// Row i becomes row source[i] of the input, or 0 where that is -1. There are source.size() rows, a power of two. At most 10·log₂(rows)
// layers: the rows in use are brought together, spread, copied and permuted.
std::vector<Layer> route_rows(const std::vector<int64_t>& source);

Layer to_routed();    // the first column to all three, which the layers above start from
Layer join_routed();  // the sum of the three columns to all three

}  // namespace based::theory
