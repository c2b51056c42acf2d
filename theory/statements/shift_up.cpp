#include "theory/primitives.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace shift_up_statement {

// A random program of causal layers: filters move rows only down, as a linear convolution cut to N rows does.
Program causal_program(Random& random, Size size, int64_t layers) {
  Program program{size, size, {}};
  for (int64_t k = 0; k < layers; ++k) {
    Layer layer{"random", {}, {}, {}, {}};
    for (int64_t i = 0; i < size.columns; ++i)
      for (int64_t j = 0; j < size.columns; ++j) layer.weight.push_back({i, j, random.between(-2, 2)});
    for (int64_t i = 0; i < size.rows; ++i) {
      layer.gate_bias.push_back({i, 1, 0, size.columns, random.between(-2, 2)});
      layer.filter_bias.push_back({i, 1, 0, size.columns, random.between(-2, 2)});
      layer.filter.push_back({i, 1, random.between(-2, 2)});
    }
    program.layers.push_back(layer);
  }
  return program;
}

// If u * h is cut to N rows, no layers move anything up: the first row of the output depends only on the first row of the input.
void try_causal(Trial& trial) {
  Random random(3);
  bool same = true;
  constexpr int kPrograms = 1000;
  for (int k = 0; k < kPrograms; ++k) {
    const Size size{random.between(2, 5), random.between(1, 3)};
    const Program program = causal_program(random, size, random.between(1, 3));
    IntMatrix u = random_matrix(random, size, 0, 1);
    const IntMatrix first = run(program, u);
    for (int64_t j = 0; j < size.columns; ++j) u.at(size.rows - 1, j) += 1;
    const IntMatrix second = run(program, u);
    same = same && std::equal(first.row(0), first.row(1), second.row(0));
    trial.count(2);
  }
  trial.correct(
      {"three layers of linear convolutions shift up",
       std::to_string(kPrograms) + " random programs of causal filters: none sees the last row of its input in the first row of its output",
       "filters that reach both ways (a cyclic convolution has the same effect); then one layer does it"},
      same);
}

void verify(Trial& trial) {
  try_layer(trial, 3, "N ≤ 12, d ≤ 8, s ≤ N", [](Random& random, Size size) {
    const int64_t s = random.between(0, size.rows);
    return CellCase{size, shift_up(s),
                    [s, size](const IntMatrix& u, int64_t i, int64_t j) { return i + s < size.rows ? u.at(i + s, j) : 0; }};
  });
  try_causal(trial);
}

Example example() { return {one_layer({5, 3}, shift_up(2)), IntMatrix({5, 3}, 1), "Ones in 5 rows, shifted up by 2."}; }

}  // namespace shift_up_statement

extern const Statement statement_shift_up{"shift_up", "Proposition 'prim-shift'", "rows move up by any s ≤ N in three layers",
                                          6000,       shift_up_statement::verify, shift_up_statement::example};

}  // namespace based::theory
