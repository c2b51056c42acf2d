#include "theory/remember.h"

#include "theory/primitives.h"
#include "theory/statements/random_layer.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace remember_statement {

// The layer is applied to the region's rows alone; the other rows are unchanged.
IntMatrix expected_of(const IntMatrix& u, const Region& region, const Layer& layer) {
  IntMatrix part({region.rows, u.size.columns}), expected = u;
  std::copy(u.row(region.first), u.row(region.first + region.rows), part.row(0));
  part = run(one_layer(part.size, layer), part);
  std::copy(part.cells.begin(), part.cells.end(), expected.row(region.first));
  return expected;
}

void verify(Trial& trial) {
  try_cases(trial, "N ≤ 12, d ≤ 4, any region, layers that reach both ways", [&](Random& random) {
    const int64_t occupied = random.between(1, 12), columns = random.between(1, 4);
    const int64_t first = random.between(0, occupied - 1), rows = random.between(1, occupied - first);
    const Region region{occupied, first, rows};
    const Layer layer = random_layer(random, {rows, columns});
    const Program program{{occupied, columns}, {rows_to_remember(region, layer), columns}, remember(region, layer)};
    trial.layers(program.depth(), 8);
    return Case{program, program.tuple(),
                [=](Random& from) {
                  return random_matrix(from, {occupied, columns}, -kLargest, kLargest);
                },
                [=](const IntMatrix& u) { return expected_of(u, region, layer); }};
  });
  trial.note("the printed proof takes 5 layers and two shifts up, of three layers each: 11, where 8 are claimed");
}

Example example() {
  const Region region{4, 1, 2};
  const Layer layer = sum_all_columns(3);
  IntMatrix u({4, 3});
  u.cells = {1, 2, 3, 1, 1, 1, 2, 2, 2, 4, 5, 6};
  return {{u.size, {rows_to_remember(region, layer), 3}, remember(region, layer)},
          u,
          "The columns of rows 2 and 3 are summed, rows 1 and 4 stay."};
}

}  // namespace remember_statement

extern const Statement statement_remember{
    "remember", "Proposition 'prim-remember'", "a layer is applied to some rows while the others stay, in 8 layers",
    4000,       remember_statement::verify,    remember_statement::example};

}  // namespace based::theory
