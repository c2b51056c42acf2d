// The appendix's primitives that are one layer of BaseConv each. They act on all rows and columns that there are; rows and columns are
// counted from 0. What a primitive asks of its input is said with it.
#pragma once
#include <vector>

#include "based/theory/base_conv.h"

namespace based::theory {

std::vector<WeightEntry> identity(int64_t columns);  // W = I

Layer shift_down(int64_t rows);  // y[i] = u[i - rows]
Layer shift_up(int64_t rows);    // y[i] = u[i + rows]: not causal, which no layers of causal filters can do

Layer add(int64_t rows);                      // y[i] = u[i] + u[i + rows] for i < rows, the other rows are zero
Layer select(int64_t first, int64_t rows);    // keeps these rows and makes the others zero
Layer keep(const std::vector<Patch>& cells);  // keeps these cells

Layer repeat_columns(int64_t columns, int64_t times);     // y[:, j·times + k] = u[:, j] for j < columns, k < times
Layer repeat_matrix(int64_t rows, int64_t times);         // y[k·rows + i] = u[i] for k < times, where u is zero from row `rows` on
Layer cumulative_sum(int64_t rows);                       // y[i] = u[0] + … + u[i] for i < rows
Layer sum_all_columns(int64_t columns);                   // y[:, 0] = the sum of u[:, j], the other columns are zero
Layer sum_block_columns(int64_t columns, int64_t block);  // y[:, k] = the sum of u[:, j·block + k] for k < block, which divides `columns`
Layer map_columns(std::string what, std::vector<WeightEntry> weight);  // y = uW

}  // namespace based::theory
