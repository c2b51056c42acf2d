#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace cumulative_sum_statement {

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d ≤ 8", [](Random&, Size size) {
    return CellCase{size, cumulative_sum(size.rows), [](const IntMatrix& u, int64_t i, int64_t j) {
                      int64_t sum = 0;
                      for (int64_t k = 0; k <= i; ++k) sum += u.at(k, j);
                      return sum;
                    }};
  });
}

Example example() { return {one_layer({5, 3}, cumulative_sum(5)), IntMatrix({5, 3}, 1), "Sums of 1, 2, … rows."}; }

}  // namespace cumulative_sum_statement

extern const Statement statement_cumulative_sum{"cumulative_sum",
                                                "Proposition 'prim:cumulativesum'",
                                                "each row becomes the sum of the rows up to it, in one layer",
                                                4000,
                                                cumulative_sum_statement::verify,
                                                cumulative_sum_statement::example};

}  // namespace based::theory
