#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace select_statement {

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d ≤ 8, any rows", [](Random& random, Size size) {
    const int64_t first = random.between(0, size.rows - 1), rows = random.between(0, size.rows - first);
    return CellCase{size, select(first, rows),
                    [first, rows](const IntMatrix& u, int64_t i, int64_t j) { return i < first || i >= first + rows ? 0 : u.at(i, j); }};
  });
}

Example example() { return {one_layer({5, 3}, select(1, 2)), IntMatrix({5, 3}, 1), "Rows 2 and 3 are kept."}; }

}  // namespace select_statement

extern const Statement statement_select{"select",
                                        "used throughout the primitives' section",
                                        "rows are kept and the others zeroed in one layer",
                                        4000,
                                        select_statement::verify,
                                        select_statement::example};

}  // namespace based::theory
