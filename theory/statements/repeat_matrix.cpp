#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace repeat_matrix_statement {

void verify(Trial& trial) {
  try_cases(trial, "N ≤ 12, d ≤ 8, r ≤ 5", [&](Random& random) {
    const int64_t rows = random.between(1, 12), columns = random.between(1, 8), times = random.between(1, 5);
    const Program program{{rows, columns}, {rows * times, columns}, {repeat_matrix(rows, times)}};
    trial.layers(program.depth(), 1);
    return Case{program, program.tuple(),
                [=](Random& from) {
                  return random_matrix(from, {rows, columns}, -kLargest, kLargest);
                },
                [=](const IntMatrix& u) {
                  IntMatrix expected({rows * times, columns});
                  for (int64_t i = 0; i < rows * times; ++i) std::copy(u.row(i % rows), u.row(i % rows) + columns, expected.row(i));
                  return expected;
                }};
  });
}

Example example() {
  IntMatrix u({2, 3});
  u.cells = {1, 2, 3, 4, 5, 6};
  return {{u.size, {6, 3}, {repeat_matrix(2, 3)}}, u, "2 rows 3 times."};
}

}  // namespace repeat_matrix_statement

extern const Statement statement_repeat_matrix{"repeat_matrix",
                                               "Proposition 'prim:repeatmat'",
                                               "N rows r times below each other, in one layer",
                                               4000,
                                               repeat_matrix_statement::verify,
                                               repeat_matrix_statement::example};

}  // namespace based::theory
