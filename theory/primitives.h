// The appendix's primitives that take one layer of BaseConv. They act on all rows and columns, which are counted from 0. Requirements on
// the input are stated for each primitive.
#pragma once
#include <vector>

#include "theory/base_conv.h"

namespace based::theory {

std::vector<WeightEntry> identity(int64_t columns);  // W = I

Layer shift_down(int64_t rows);  // y[i] = u[i - rows]
Layer shift_up(int64_t rows);    // y[i] = u[i + rows]; not causal: layers with causal filters cannot compute it

Layer add(int64_t rows);                      // y[i] = u[i] + u[i + rows] for i < rows; the other rows are zero
Layer select(int64_t first, int64_t rows);    // keeps `rows` rows from `first` on and sets the others to zero
Layer keep(const std::vector<Patch>& cells);  // keeps these cells and sets the others to zero

Layer repeat_columns(int64_t columns, int64_t times);     // y[:, j·times + k] = u[:, j] for j < columns, k < times
Layer repeat_matrix(int64_t rows, int64_t times);         // y[k·rows + i] = u[i] for k < times; u must be zero from row `rows` on
Layer cumulative_sum(int64_t rows);                       // y[i] = u[0] + … + u[i] for i < rows
Layer sum_all_columns(int64_t columns);                   // y[:, 0] = Σ_j u[:, j]; the other columns are zero
Layer sum_block_columns(int64_t columns, int64_t block);  // y[:, k] = Σ_j u[:, j·block + k] for k < block; block divides `columns`
Layer map_columns(std::string what, std::vector<WeightEntry> weight);  // y = uW

}  // namespace based::theory
