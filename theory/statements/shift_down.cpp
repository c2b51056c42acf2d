#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace shift_down_statement {

void verify(Trial& trial) {
  try_layer(trial, 1, "N ≤ 12, d ≤ 8, s ≤ N", [](Random& random, Size size) {
    const int64_t s = random.between(0, size.rows);
    return CellCase{size, shift_down(s), [s](const IntMatrix& u, int64_t i, int64_t j) { return i < s ? 0 : u.at(i - s, j); }};
  });
}

Example example() { return {one_layer({5, 3}, shift_down(2)), IntMatrix({5, 3}, 1), "Ones in 5 rows, shifted down by 2."}; }

}  // namespace shift_down_statement

extern const Statement statement_shift_down{"shift_down", "Proposition 'prim-shift'",   "rows move down by any s ≤ N in one layer",
                                            4000,         shift_down_statement::verify, shift_down_statement::example};

}  // namespace based::theory
