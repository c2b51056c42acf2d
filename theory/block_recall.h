// Associative recall by a product over blocks. The number of BaseConv layers depends only on the encoding's number of blocks, which the
// lower bounds by degree are compared with. It is not causal.
#pragma once
#include <cstdint>
#include <vector>

#include "theory/base_conv.h"
#include "theory/p_hot.h"

namespace based::theory {

// Associative recall (AR) for 2·keys + 1 rows: key 0, value 0, key 1, value 1, …, query, all in `encoding`. The last row becomes the sum of
// the values whose keys equal the query; all other rows become zero. It has 5 + ⌈log₂ p⌉ layers, N' = N rows, and d' = 2d columns, plus p
// if the encoding is almost p-hot. The compact encoding of d bits is the almost d-hot encoding of base 2.
Program block_recall(const PHot& encoding, int64_t keys);

// Multi-query associative recall (MQAR) for 3·tuples rows: key 0, value 0, query 0, key 1, …. The row of query i becomes the sum of the
// values j < i whose keys equal it; all other rows become zero. It uses a copy of the input for each query, so N' = 3·tuples², and two more
// layers. The columns are the same.
Program block_mqar(const PHot& encoding, int64_t tuples);

// The tokens' encodings as rows. A token of −1 gives a row of zeros.
IntMatrix encoded(const PHot& encoding, const std::vector<int64_t>& tokens);

}  // namespace based::theory
