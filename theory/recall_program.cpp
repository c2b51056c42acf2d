#include "theory/recall_program.h"

#include <algorithm>

#include "theory/integers.h"
#include "theory/one_hot.h"
#include "theory/primitives.h"
#include "theory/remember.h"

namespace based::theory {
namespace {

// Three blocks of z rows, stacked vertically, are the paper's first, second and third position.
class Builder {
 public:
  explicit Builder(const RecallSizes& sizes) : sizes_(sizes), z_(sizes.block()) {
    const int64_t n = sizes.length, b = sizes.key_bits(), c = sizes.value_bits(), d = sizes.tokens;
    program_.outer = {3 * n, d};
    program_.inner = {4 * z_, std::max({n, d * b, n * c})};
    if (sizes.code == ValueCode::binary) program_.inner.rows = std::max(program_.inner.rows, rows_to_one_hot(values()));
  }

  OneHot keys() const { return {sizes_.length, sizes_.key_bits(), sizes_.length}; }
  OneHot values() const { return {sizes_.length, sizes_.value_bits(), sizes_.tokens}; }
  int64_t z() const { return z_; }
  int64_t columns() const { return program_.inner.columns; }

  void layer(const std::string& step, Layer layer) {
    layer.what = step + ": " + layer.what;
    program_.layers.push_back(std::move(layer));
  }
  // Applies layers to one block and leaves the others unchanged.
  void within(const std::string& step, int64_t block, const std::vector<Layer>& layers) {
    const Region region{3 * z_, block * z_, z_};
    program_.inner.rows = std::max(program_.inner.rows, rows_to_remember(region, layers));
    for (const Layer& part : remember(region, layers)) layer(step, part);
  }
  void within(const std::string& step, int64_t block, const Layer& one) { within(step, block, std::vector<Layer>{one}); }

  Program take() { return std::move(program_); }

 private:
  RecallSizes sizes_;
  int64_t z_;
  Program program_;
};

// y = u ⊙ (u moved down by `rows`), with a gate of 1 in `also`.
Layer multiply(const Builder& builder, int64_t rows, const std::vector<Patch>& also) {
  return {"multiply with the block " + std::to_string(rows) + " rows above", identity(builder.columns()), also, {}, {{rows}}};
}

Layer masked(const std::string& what, int64_t columns, const std::vector<Patch>& cells) { return {what, identity(columns), {}, cells, {}}; }

// Steps 1 to 3: the first block becomes L = C ⊙ (Q Kᵀ), computed from the row number of each query's key.
void match_keys(Builder& builder, const RecallSizes& sizes) {
  const int64_t n = sizes.length, d = sizes.tokens, b = sizes.key_bits(), z = builder.z();
  builder.layer("0", {"Q, K and V to blocks of their own",
                      {},
                      {{0, n, 0, kAll}, {z, n, 0, kAll}, {2 * z, n, 0, kAll}},
                      {},
                      {{0}, {z - n}, {2 * (z - n)}}});
  builder.within("1.1", 1, repeat_columns(d, b));
  std::vector<Patch> row_numbers;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < d * b; ++j)
      if (bit_of(i + 1, j % b) == 1) row_numbers.push_back({i, 1, j, 1});
  builder.within("1.2", 1, masked("write row numbers in bits", builder.columns(), row_numbers));
  builder.within("1.3", 1, cumulative_sum(z));
  builder.within("2.1", 0, repeat_columns(d, b));
  // The third block is moved to the fourth, where the gate must be 1.
  builder.layer("2.2", multiply(builder, z, {{3 * z, z, 0, kAll}}));
  builder.layer("2.2", keep({{z, z, 0, kAll}, {3 * z, z, 0, kAll}}));
  builder.layer("2.2", shift_up(z));
  builder.within("2.3", 0, sum_block_columns(d * b, b));
  builder.within("3", 0, one_hot(builder.keys()));
}

// Steps 4 to 6: each of the first rows of the third block becomes a list of all values, with c columns per value.
void list_values(Builder& builder, const RecallSizes& sizes) {
  const int64_t n = sizes.length, d = sizes.tokens, c = sizes.value_bits(), z = builder.z();
  builder.within("4.1", 2, repeat_matrix(n, c));
  std::vector<Patch> code;
  for (int64_t bit = 0; bit < c; ++bit)
    for (int64_t j = 0; j < d; ++j)
      if (sizes.code == ValueCode::plain ? bit == j : bit_of(j + 1, bit) == 1) code.push_back({bit * n, n, j, 1});
  builder.within("4.2", 2, masked("keep the columns of one bit in each copy", builder.columns(), code));
  builder.within("5", 2, sum_all_columns(d));
  builder.within("6.1", 2, repeat_columns(1, n * c));
  std::vector<Patch> diagonal;
  for (int64_t i = 0; i < n * c; ++i) diagonal.push_back({i, 1, i, 1});
  builder.within("6.2", 2, keep(diagonal));
  std::vector<WeightEntry> by_row;
  for (int64_t bit = 0; bit < c; ++bit)
    for (int64_t i = 0; i < n; ++i) by_row.push_back({bit * n + i, i * c + bit});
  builder.within("6.3", 2, map_columns("put the bits of a row beside each other", by_row));
  builder.within("6.4", 2, cumulative_sum(z));
  Layer up = shift_up(n * c - 1);
  up.gate_bias = {{0, 1, 0, kAll}};  // the rows below hold sums too and must be cleared
  builder.within("6.5", 2, up);
  builder.within("6.6", 2, cumulative_sum(z));
}

// Steps 7 and 8: each match in L selects its value from the list.
void choose_values(Builder& builder, const RecallSizes& sizes) {
  const int64_t n = sizes.length, c = sizes.value_bits(), z = builder.z();
  builder.within("7.1", 0, repeat_columns(n, c));
  builder.layer("7.2", multiply(builder, 2 * z, {}));
  builder.layer("7.3", shift_up(2 * z));
  builder.layer("8.1", sum_block_columns(n * c, c));
  if (sizes.code == ValueCode::plain) return;
  for (const Layer& layer : one_hot(builder.values())) builder.layer("8.2", layer);
}

}  // namespace

int64_t RecallSizes::key_bits() const { return ceil_log2(length + 1); }

int64_t RecallSizes::value_bits() const { return code == ValueCode::plain ? tokens : ceil_log2(tokens + 1); }

int64_t RecallSizes::block() const { return std::max({3 * length, 2 * length * key_bits(), length * value_bits()}); }

Program recall_program(const RecallSizes& sizes) {
  for (const auto& [name, value] : {std::pair{"N", sizes.length}, std::pair{"d", sizes.tokens}})
    if (value < 1 || value > kMaxRecall)
      throw UsageError(std::string("theory: the recall program takes ") + name + " of 1 … " + std::to_string(kMaxRecall) + ", not " +
                       std::to_string(value));
  Builder builder(sizes);
  match_keys(builder, sizes);
  list_values(builder, sizes);
  choose_values(builder, sizes);
  return builder.take();
}

IntMatrix recall_by_definition(const RecallSizes& sizes, const IntMatrix& input) {
  const int64_t n = sizes.length, d = sizes.tokens;
  IntMatrix result({n, d});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      int64_t match = 0;
      for (int64_t k = 0; k < d; ++k) match += input.at(i, k) * input.at(n + j, k);
      for (int64_t k = 0; k < d; ++k) result.at(i, k) += match * input.at(2 * n + j, k);
    }
  }
  return result;
}

}  // namespace based::theory
