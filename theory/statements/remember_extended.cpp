#include "theory/one_hot.h"
#include "theory/remember.h"
#include "theory/statements/random_layer.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace remember_extended_statement {

void verify(Trial& trial) {
  try_cases(trial, "N ≤ 8, d ≤ 3, L ≤ 4, any region", [&](Random& random) {
    const int64_t occupied = random.between(1, 8), columns = random.between(1, 3), depth = random.between(1, 4);
    const int64_t first = random.between(0, occupied - 1), rows = random.between(1, occupied - first);
    const Region region{occupied, first, rows};
    std::vector<Layer> layers;
    for (int64_t k = 0; k < depth; ++k) layers.push_back(random_layer(random, {rows, columns}));
    const Program program{{occupied, columns}, {rows_to_remember(region, layers), columns}, remember(region, layers)};
    trial.layers(program.depth(), "O(L)");
    trial.require(program.depth() == 3 * depth, "not three layers for each");
    return Case{program, program.tuple(),
                [=](Random& from) {
                  return random_matrix(from, {occupied, columns}, 0, 1);
                },
                [=](const IntMatrix& u) {
                  IntMatrix part({rows, columns}), expected = u;
                  std::copy(u.row(first), u.row(first + rows), part.row(0));
                  part = run(Program{part.size, part.size, layers}, part);
                  std::copy(part.cells.begin(), part.cells.end(), expected.row(first));
                  return expected;
                }};
  });
}

Example example() {
  const OneHot shape{1, 2, 3};
  const Region region{rows_to_one_hot(shape) + 2, 1, rows_to_one_hot(shape)};
  const std::vector<Layer> layers = one_hot(shape);
  IntMatrix u({region.occupied, 3});
  u.at(0, 0) = u.at(0, 2) = u.at(1, 1) = u.at(region.occupied - 1, 1) = 1;
  return {{u.size, {rows_to_remember(region, layers), 3}, remember(region, layers)},
          u,
          "The second row holds the number 2 in two bits, the least first; it becomes one-hot, the rows around it stay."};
}

}  // namespace remember_extended_statement

extern const Statement statement_remember_extended{"remember_extended",
                                                   "Corollary 'remember:extended'",
                                                   "L layers are applied to some rows while the others stay, in O(L) layers",
                                                   4000,
                                                   remember_extended_statement::verify,
                                                   remember_extended_statement::example};

}  // namespace based::theory
