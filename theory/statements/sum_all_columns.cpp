#include <numeric>

#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace sum_all_columns_statement {

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d ≤ 8", [](Random&, Size size) {
    return CellCase{size, sum_all_columns(size.columns), [](const IntMatrix& u, int64_t i, int64_t j) {
                      return j == 0 ? std::accumulate(u.row(i), u.row(i) + u.size.columns, int64_t{0}) : 0;
                    }};
  });
}

Example example() { return {one_layer({3, 4}, sum_all_columns(4)), IntMatrix({3, 4}, 1), "4 columns, summed."}; }

}  // namespace sum_all_columns_statement

extern const Statement statement_sum_all_columns{"sum_all_columns",
                                                 "Proposition 'prim:sumall'",
                                                 "the first column becomes the sum of all, in one layer",
                                                 4000,
                                                 sum_all_columns_statement::verify,
                                                 sum_all_columns_statement::example};

}  // namespace based::theory
