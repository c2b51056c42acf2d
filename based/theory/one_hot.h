// The 1-hot primitive: each row's binary number becomes a one-hot row, in ⌈log log⌉ + O(1) layers.
#pragma once
#include <vector>

#include "based/theory/base_conv.h"

namespace based::theory {

struct OneHot {
  int64_t rows;     // N: rows that hold numbers, in their first `bits` columns, the least bit first. Other rows are zero.
  int64_t bits;     // of a number, 0 … 2^bits - 1
  int64_t columns;  // of the result: number v becomes 1 in column v - 1; 0 and what is above `columns` become a row of zeros
};

int64_t rows_to_one_hot(const OneHot& of);     // the least N'
int64_t columns_to_one_hot(const OneHot& of);  // the least d'
std::vector<Layer> one_hot(const OneHot& of);  // 7 + ⌈log₂ bits⌉ layers

// What the paper prints, with the paper's bits = ⌈log N'⌉ of columns = N' rows: for its counterexamples.
std::vector<Layer> one_hot_as_printed(int64_t rows);

}  // namespace based::theory
