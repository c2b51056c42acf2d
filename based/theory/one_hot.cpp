#include "based/theory/one_hot.h"

#include "based/theory/integers.h"
#include "based/theory/primitives.h"

namespace based::theory {
namespace {

// Ones where a number of of.bits bits whose bit `bit` is `value` can have its one-hot column, in a block of rows.
void add_candidates(int64_t row, const OneHot& of, int64_t bit, int64_t value, int64_t scale, std::vector<Patch>& patches) {
  const int64_t numbers = of.bits < 62 ? int64_t{1} << of.bits : INT64_MAX;
  for (int64_t j = 0; j < of.columns && j + 1 < numbers; ++j)
    if (bit_of(j + 1, bit) == value) patches.push_back({row, of.rows, j, 1, scale});
}

}  // namespace

int64_t rows_to_one_hot(const OneHot& of) { return 2 * of.rows * of.bits; }

int64_t columns_to_one_hot(const OneHot& of) { return std::max(of.columns, of.bits); }

std::vector<Layer> one_hot(const OneHot& of) {
  const auto [rows, bits, columns] = of;
  const int64_t half = rows * bits;
  std::vector<Layer> layers;

  layers.push_back(repeat_matrix(rows, 2 * bits));
  layers.back().gate_bias = {{0, 2 * half, 0, bits}};

  Layer one_bit{"keep one bit in each block of rows", identity(columns_to_one_hot(of)), {}, {}, {}};
  for (int64_t block = 0; block < 2 * bits; ++block) one_bit.filter_bias.push_back({block * rows, rows, block % bits, 1});
  layers.push_back(one_bit);
  layers.push_back(sum_all_columns(bits));
  layers.push_back(repeat_columns(1, columns));

  // In the lower half 1 - bit, as -1 · (bit - 1), says where the bit is 0.
  Layer candidates{"columns that go with the bit", {}, {}, {{half, half, 0, kAll, -1}}, {{0}}};
  for (int64_t bit = 0; bit < bits; ++bit) {
    add_candidates(bit * rows, of, bit, 1, 1, candidates.gate_bias);
    add_candidates(half + bit * rows, of, bit, 0, -1, candidates.gate_bias);
  }
  layers.push_back(candidates);
  layers.push_back({"join the halves", {}, {{0, half, 0, kAll}}, {}, {{0}, {-half}}});

  // Blocks of rows are multiplied in pairs, fours, …; where a block has no partner it is multiplied by 1.
  for (int64_t distance = 1; distance < bits; distance *= 2) {
    const int64_t lonely = std::max<int64_t>(0, bits - distance);
    layers.push_back({"AND of blocks " + std::to_string(distance) + " apart",
                      identity(columns),
                      {},
                      {{lonely * rows, half - lonely * rows, 0, kAll}},
                      {{-rows * distance}}});
  }
  layers.push_back(select(0, rows));
  return layers;
}

std::vector<Layer> one_hot_as_printed(int64_t rows) {
  const OneHot of{rows, ceil_log2(rows), rows};
  const int64_t half = rows * of.bits;
  std::vector<Layer> layers = one_hot(of);
  layers.resize(4);
  layers[1].filter_bias.clear();
  for (int64_t i = 1; i <= 2 * half; ++i) layers[1].filter_bias.push_back({i - 1, 1, i / rows % of.bits, 1});  // i from 1, as it is printed

  Layer candidates{"columns that go with the bit, the bit itself in both halves", {}, {}, {}, {{0}}};
  for (int64_t bit = 0; bit < of.bits; ++bit) {
    add_candidates(bit * rows, of, bit, 1, 1, candidates.gate_bias);
    add_candidates(half + bit * rows, of, bit, 0, 1, candidates.gate_bias);
  }
  layers.push_back(candidates);
  layers.push_back({"join the halves", {}, {{half, half, 0, kAll}}, {}, {{0}, {half}}});
  layers.push_back(shift_up(half));
  for (int64_t distance = 1; distance < of.bits; distance *= 2) {
    layers.push_back({"z ⊙ (z + shifted z)", identity(rows), {}, {}, {{0}, {distance}}});
    layers.push_back(shift_up(rows * distance));
  }
  return layers;
}

}  // namespace based::theory
