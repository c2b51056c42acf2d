#include "theory/one_hot.h"

#include "theory/integers.h"
#include "theory/primitives.h"

namespace based::theory {
namespace {

// Marks the possible one-hot columns of numbers whose bit `bit` is `value`, in a block of rows.
void add_candidates(int64_t row, const OneHot& shape, int64_t bit, int64_t value, int64_t scale, std::vector<Patch>& patches) {
  const int64_t numbers = shape.bits < 62 ? int64_t{1} << shape.bits : INT64_MAX;
  for (int64_t j = 0; j < shape.columns && j + 1 < numbers; ++j)
    if (bit_of(j + 1, bit) == value) patches.push_back({row, shape.rows, j, 1, scale});
}

}  // namespace

int64_t rows_to_one_hot(const OneHot& shape) { return 2 * shape.rows * shape.bits; }

int64_t columns_to_one_hot(const OneHot& shape) { return std::max(shape.columns, shape.bits); }

std::vector<Layer> one_hot(const OneHot& shape) {
  const auto [rows, bits, columns] = shape;
  const int64_t half = rows * bits;
  std::vector<Layer> layers;

  layers.push_back(repeat_matrix(rows, 2 * bits));
  layers.back().gate_bias = {{0, 2 * half, 0, bits}};

  Layer one_bit{"keep one bit in each block of rows", identity(columns_to_one_hot(shape)), {}, {}, {}};
  for (int64_t block = 0; block < 2 * bits; ++block) one_bit.filter_bias.push_back({block * rows, rows, block % bits, 1});
  layers.push_back(one_bit);
  layers.push_back(sum_all_columns(bits));
  layers.push_back(repeat_columns(1, columns));

  // The lower half holds 1 - bit, computed as -1 · (bit - 1), which marks bits of 0.
  Layer candidates{"columns that go with the bit", {}, {}, {{half, half, 0, kAll, -1}}, {{0}}};
  for (int64_t bit = 0; bit < bits; ++bit) {
    add_candidates(bit * rows, shape, bit, 1, 1, candidates.gate_bias);
    add_candidates(half + bit * rows, shape, bit, 0, -1, candidates.gate_bias);
  }
  layers.push_back(candidates);
  layers.push_back({"join the halves", {}, {{0, half, 0, kAll}}, {}, {{0}, {-half}}});

  // Blocks of rows are multiplied in pairs, fours, …; a block without a partner is multiplied by 1.
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
  const OneHot shape{rows, ceil_log2(rows), rows};
  const int64_t half = rows * shape.bits;
  std::vector<Layer> layers = one_hot(shape);
  layers.resize(4);
  layers[1].filter_bias.clear();
  for (int64_t i = 1; i <= 2 * half; ++i)
    layers[1].filter_bias.push_back({i - 1, 1, i / rows % shape.bits, 1});  // i counts from 1, as printed

  Layer candidates{"columns that go with the bit, the bit itself in both halves", {}, {}, {}, {{0}}};
  for (int64_t bit = 0; bit < shape.bits; ++bit) {
    add_candidates(bit * rows, shape, bit, 1, 1, candidates.gate_bias);
    add_candidates(half + bit * rows, shape, bit, 0, 1, candidates.gate_bias);
  }
  layers.push_back(candidates);
  layers.push_back({"join the halves", {}, {{half, half, 0, kAll}}, {}, {{0}, {half}}});
  layers.push_back(shift_up(half));
  for (int64_t distance = 1; distance < shape.bits; distance *= 2) {
    layers.push_back({"z ⊙ (z + shifted z)", identity(rows), {}, {}, {{0}, {distance}}});
    layers.push_back(shift_up(rows * distance));
  }
  return layers;
}

}  // namespace based::theory
