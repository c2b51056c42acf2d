#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace repeat_columns_statement {

// As printed: W[i, j] = 1 if ⌈i / r⌉ = j, with i and j counted from 1.
Layer as_printed(int64_t columns, int64_t times) {
  std::vector<WeightEntry> weight;
  for (int64_t i = 0; i < columns * times; ++i) weight.push_back({i, i / times});
  return map_columns("as printed", weight);
}

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d·r ≤ 40", [](Random& random, Size size) {
    const int64_t times = random.between(1, 5);
    return CellCase{{size.rows, size.columns * times},
                    repeat_columns(size.columns, times),
                    [times](const IntMatrix& u, int64_t i, int64_t j) { return u.at(i, j / times); }};
  });
  IntMatrix u({1, 4});
  u.cells = {3, 5, 0, 0};
  const IntMatrix found = run(one_layer(u.size, as_printed(2, 2)), u);
  trial.correct({"W[i, j] = 1 where ⌈i/r⌉ = j",
                 "r = 2 on " + row_text(u, 0) + " gives " + row_text(found, 0) + ", the sums of r columns, not (3, 3, 5, 5)",
                 "W[i, j] = 1 where ⌈j/r⌉ = i"},
                found.cells != std::vector<int64_t>{3, 3, 5, 5});
}

Example example() {
  IntMatrix u({2, 6});
  u.cells = {1, 2, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0};
  return {one_layer(u.size, repeat_columns(2, 3)), u, "Each of 2 columns 3 times."};
}

}  // namespace repeat_columns_statement

extern const Statement statement_repeat_columns{"repeat_columns",
                                                "Proposition 'prim:repeatcols'",
                                                "each of d columns r times, in one layer",
                                                4000,
                                                repeat_columns_statement::verify,
                                                repeat_columns_statement::example};

}  // namespace based::theory
