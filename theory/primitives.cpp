#include "theory/primitives.h"

namespace based::theory {
namespace {

const Patch kOnes{0, kAll, 0, kAll};

// y = mask ⊙ (h ∗ u), with W = 0.
Layer filtered(std::string what, std::vector<Tap> filter, std::vector<Patch> mask = {kOnes}) {
  return {std::move(what), {}, std::move(mask), {}, std::move(filter)};
}

std::string number(int64_t value) { return std::to_string(value); }

}  // namespace

std::vector<WeightEntry> identity(int64_t columns) {
  std::vector<WeightEntry> weight;
  for (int64_t j = 0; j < columns; ++j) weight.push_back({j, j});
  return weight;
}

Layer shift_down(int64_t rows) { return filtered("shift down by " + number(rows), {{rows}}); }

Layer shift_up(int64_t rows) { return filtered("shift up by " + number(rows), {{-rows}}); }

Layer add(int64_t rows) { return filtered("add rows from " + number(rows) + " on to the first", {{0}, {-rows}}, {{0, rows, 0, kAll}}); }

Layer select(int64_t first, int64_t rows) {
  Layer layer = keep({{first, rows, 0, kAll}});
  layer.what = "select " + number(rows) + " rows from " + number(first) + " on";
  return layer;
}

Layer keep(const std::vector<Patch>& cells) { return filtered("keep some cells", {{0}}, cells); }

Layer repeat_columns(int64_t columns, int64_t times) {
  std::vector<WeightEntry> weight;
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = 0; k < times; ++k) weight.push_back({j, j * times + k});
  return map_columns("repeat columns " + number(times) + " times", std::move(weight));
}

Layer repeat_matrix(int64_t rows, int64_t times) {
  std::vector<Tap> filter;
  for (int64_t k = 0; k < times; ++k) filter.push_back({k * rows});
  return filtered("repeat " + number(rows) + " rows " + number(times) + " times", std::move(filter));
}

Layer cumulative_sum(int64_t rows) { return filtered("cumulative sum", {{0, rows}}, {{0, rows, 0, kAll}}); }

Layer sum_all_columns(int64_t columns) {
  Layer layer = sum_block_columns(columns, 1);
  layer.what = "sum all columns";
  return layer;
}

Layer sum_block_columns(int64_t columns, int64_t block) {
  BASED_ASSERT(columns % block == 0);
  std::vector<WeightEntry> weight;
  for (int64_t j = 0; j < columns; ++j) weight.push_back({j, j % block});
  return map_columns("sum blocks of " + number(block) + " columns", std::move(weight));
}

Layer map_columns(std::string what, std::vector<WeightEntry> weight) { return {std::move(what), std::move(weight), {}, {kOnes}, {}}; }

}  // namespace based::theory
