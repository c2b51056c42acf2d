#include "theory/base_conv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "theory/integers.h"
#include "theory/primitives.h"
#include "theory/statement.h"
#include "theory/statements/random_layer.h"

namespace based::theory {
namespace base_conv_test {

// The formula with dense W, B₁, B₂ and h, entry by entry.
IntMatrix by_formula(const Layer& layer, const IntMatrix& u) {
  const auto [rows, columns] = u.size;
  IntMatrix w({columns, columns}), gate_bias(u.size), filter_bias(u.size), h({2 * rows - 1, columns}),
      y(u.size);  // h[rows - 1] is offset 0
  for (const auto& [from, to, value] : layer.weight) w.at(from, to) += value;
  const auto spread = [](const std::vector<Patch>& patches, IntMatrix& bias) {
    for (int64_t i = 0; i < bias.size.rows; ++i)
      for (int64_t j = 0; j < bias.size.columns; ++j)
        for (const Patch& patch : patches)
          if (i >= patch.row && i < patch.row + patch.rows && j >= patch.column && j < patch.column + patch.columns)
            bias.at(i, j) = patch.value;
  };
  spread(layer.gate_bias, gate_bias);
  spread(layer.filter_bias, filter_bias);
  for (const Tap& tap : layer.filter)
    for (int64_t offset = std::max(tap.offset, 1 - rows); offset < std::min(tap.offset + tap.length, rows); ++offset)
      for (int64_t j = tap.column; j < std::min(columns, tap.column + tap.columns); ++j) h.at(rows - 1 + offset, j) += tap.value;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      int64_t gate = gate_bias.at(i, j), filtered = filter_bias.at(i, j);
      for (int64_t k = 0; k < columns; ++k) gate += u.at(i, k) * w.at(k, j);
      for (int64_t k = 0; k < rows; ++k) filtered += h.at(rows - 1 + i - k, j) * u.at(k, j);
      y.at(i, j) = gate * filtered;
    }
  }
  return y;
}

TEST(BaseConv, IsTheFormula) {
  Random random(1);
  for (int k = 0; k < 2000; ++k) {
    const Size size{random.between(1, 9), random.between(1, 5)};
    const Layer layer = random_layer(random, size);
    const IntMatrix u = random_matrix(random, size, -3, 3);
    ASSERT_EQ(run(Program{size, size, {layer}}, u), by_formula(layer, u)) << size.rows << "x" << size.columns;
  }
}

TEST(BaseConv, RowsAndColumnsOutsideOfTheInputAreZero) {
  const Program program{{1, 1}, {3, 2}, {{"sums", {{0, 0}, {1, 0}}, {{0, 3, 1, 1}}, {{0, 3, 0, 2}}, {}}}};
  IntMatrix u({1, 1}, 7), expected({3, 2});
  expected.cells = {7, 1, 0, 1, 0, 1};
  EXPECT_EQ(run(program, u), expected);
}

TEST(BaseConv, CountsWhatWasBuilt) {
  Program program{{4, 2}, {6, 3}, {}};
  program.append({cumulative_sum(6), repeat_columns(1, 3)});
  EXPECT_EQ(program.tuple(), "(4, 2, 2, 6, 3)");
  // 18 ones of the gate, 6 taps for 3 columns, 3 weights, and 18 ones of B₂.
  EXPECT_EQ(program.parameters(), 18 + 18 + 3 + 18);
  EXPECT_EQ(program.all_parameters(), 2 * (9 + 3 * 18));
  EXPECT_EQ(shift_up(2).reach_up(), 2);
  EXPECT_EQ(cumulative_sum(6).reach_down(), 5);
  EXPECT_TRUE(shift_down(2).causal());
  EXPECT_FALSE(shift_up(2).causal());
}

TEST(BaseConv, DoesNotWrapNumbers) {
  const Layer square{"square", identity(1), {}, {}, {{0}}};
  const Program program{{1, 1}, {1, 1}, {square, square}};
  EXPECT_EQ(run(program, IntMatrix({1, 1}, 10)).at(0, 0), 10000);
  EXPECT_THROW(run(program, IntMatrix({1, 1}, 1'000'000)), Error);
  const Layer sum{"sum", {{0, 0}, {1, 0}}, {}, {{0, 1, 0, 1}}, {}};
  EXPECT_THROW(run(Program{{1, 2}, {1, 2}, {sum}}, IntMatrix({1, 2}, INT64_MAX)), Error);
}

TEST(Integers, LogarithmsAreRoundedUp) {
  EXPECT_EQ(ceil_log2(1), 0);
  EXPECT_EQ(ceil_log2(2), 1);
  EXPECT_EQ(ceil_log2(3), 2);
  EXPECT_EQ(ceil_log2(8), 3);
  EXPECT_EQ(ceil_log2(9), 4);
}

}  // namespace base_conv_test
}  // namespace based::theory
