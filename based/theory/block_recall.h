// Associative recall by a product over blocks: BaseConv layers whose number depends on the encoding's blocks alone. It is what the lower
// bounds by degree are held against. It is not causal.
#pragma once
#include <cstdint>
#include <vector>

#include "based/theory/base_conv.h"
#include "based/theory/p_hot.h"

namespace based::theory {

// AR. For 2·keys + 1 rows: key 0, value 0, key 1, value 1, …, query, all in `encoding`. The last row becomes the sum of the values whose
// keys equal the query, all others zero. 5 + ⌈log₂ p⌉ layers; N' = N rows, d' = 2d columns, and p more where the encoding is almost p-hot.
// The compact encoding of d bits is the almost d-hot one of base 2.
Program block_recall(const PHot& encoding, int64_t keys);

// MQAR. For 3·tuples rows: key 0, value 0, query 0, key 1, …. The row of query i becomes the sum of the values j < i whose keys equal it,
// all others zero. A copy of the input for each query, so that N' = 3·tuples², and two layers more; the columns are the same.
Program block_mqar(const PHot& encoding, int64_t tuples);

// Rows of encoded tokens, of which −1 is a row of zeros.
IntMatrix encoded(const PHot& encoding, const std::vector<int64_t>& tokens);

}  // namespace based::theory
