#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace sum_block_columns_statement {

// As printed: W[i, j] = 1 if j ≤ B and j - B⌊i/B⌋ (read as "is not 0"), with i and j counted from 1.
Layer as_printed(int64_t columns, int64_t block) {
  std::vector<WeightEntry> weight;
  for (int64_t i = 1; i <= columns; ++i)
    for (int64_t j = 1; j <= block; ++j)
      if (j - block * (i / block) != 0) weight.push_back({i - 1, j - 1});
  return map_columns("as printed", weight);
}

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d ≤ 40, every kind of B | d", [](Random& random, Size size) {
    const int64_t block = random.between(1, 5), columns = size.columns * block;
    return CellCase{{size.rows, columns}, sum_block_columns(columns, block), [block, columns](const IntMatrix& u, int64_t i, int64_t j) {
                      int64_t sum = 0;
                      for (int64_t k = j; k < columns && j < block; k += block) sum += u.at(i, k);
                      return sum;
                    }};
  });
  IntMatrix u({1, 4});
  u.cells = {1, 2, 3, 4};
  const IntMatrix found = run(one_layer(u.size, as_printed(4, 2)), u);
  trial.correct({"W[i, j] = 1 where j ≤ B and j - B⌊i/B⌋, which is no condition",
                 "taken as ≠ 0, B = 2 on " + row_text(u, 0) + " gives " + row_text(found, 0) + ", not (4, 6, 0, 0)",
                 "W[i, j] = 1 where j ≤ B and i - j is a multiple of B"},
                found.cells != std::vector<int64_t>{4, 6, 0, 0});
}

Example example() {
  IntMatrix u({2, 6});
  u.cells = {1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1};
  return {one_layer(u.size, sum_block_columns(6, 2)), u, "3 blocks of 2 columns."};
}

}  // namespace sum_block_columns_statement

extern const Statement statement_sum_block_columns{"sum_block_columns",
                                                   "Proposition 'prim:sumblocks'",
                                                   "the first B columns become the sum of all blocks of B, in one layer",
                                                   4000,
                                                   sum_block_columns_statement::verify,
                                                   sum_block_columns_statement::example};

}  // namespace based::theory
