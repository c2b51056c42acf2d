#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace add_statement {

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d ≤ 8, n ≤ N", [](Random& random, Size size) {
    const int64_t n = random.between(1, size.rows);
    return CellCase{size, add(n), [n, size](const IntMatrix& u, int64_t i, int64_t j) {
                      return i >= n ? 0 : u.at(i, j) + (i + n < size.rows ? u.at(i + n, j) : 0);
                    }};
  });
}

Example example() { return {one_layer({4, 3}, add(2)), IntMatrix({4, 3}, 1), "Rows 3 and 4 are added to rows 1 and 2."}; }

}  // namespace add_statement

extern const Statement statement_add{"add",
                                     "used throughout the primitives' section",
                                     "n rows are added to the n rows above in one layer",
                                     4000,
                                     add_statement::verify,
                                     add_statement::example};

}  // namespace based::theory
