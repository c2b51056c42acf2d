// The 1-hot primitive: each row's binary number becomes a one-hot row, in ⌈log log⌉ + O(1) layers.
#pragma once
#include <vector>

#include "theory/base_conv.h"

namespace based::theory {

struct OneHot {
  int64_t rows;     // N: rows that hold numbers, in their first `bits` columns, the least significant bit first. Other rows are zero.
  int64_t bits;     // bits per number, which is 0 … 2^bits - 1
  int64_t columns;  // columns of the result: number v becomes a 1 in column v - 1; 0 and numbers above `columns` become rows of zeros
};

int64_t rows_to_one_hot(const OneHot& shape);     // the least N'
int64_t columns_to_one_hot(const OneHot& shape);  // the least d'
std::vector<Layer> one_hot(const OneHot& shape);  // 7 + ⌈log₂ bits⌉ layers

// The layers as printed in the paper, with its bits = ⌈log N'⌉ and columns = N' rows, for counterexamples.
std::vector<Layer> one_hot_as_printed(int64_t rows);

}  // namespace based::theory
