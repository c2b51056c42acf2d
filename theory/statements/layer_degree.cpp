#include "theory/degree.h"
#include "theory/primitives.h"
#include "theory/statements/random_layer.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace layer_degree_statement {

// y[i] = u[i] · u[i − 2^ℓ] in layer ℓ: the last of 2^L rows is the product of all of them.
Program product_of_rows(int64_t layers) {
  const Size size{int64_t{1} << layers, 1};
  Program program{size, size, {}};
  for (int64_t k = 0; k < layers; ++k)
    program.layers.push_back({"product with the row 2^" + std::to_string(k) + " above", identity(1), {}, {}, {{int64_t{1} << k}}});
  return program;
}

void try_random(Trial& trial) {
  trial.size("random layers, N ≤ 3, d ≤ 2, L ≤ 3");
  Random random(71);
  Polynomials arithmetic;
  int64_t reached = 0;
  constexpr int kPrograms = 60;
  for (int k = 0; k < kPrograms; ++k) {
    const Size size{random.between(1, 3), random.between(1, 2)};
    Program program{size, size, {}};
    for (int64_t layer = random.between(1, size.rows * size.columns > 4 ? 2 : 3); layer > 0; --layer)
      program.layers.push_back(random_layer(random, size));
    const auto y = run<Polynomials>(program, symbols(size), arithmetic);
    const int64_t bound = int64_t{1} << program.depth();
    int64_t degree = -1;
    for (const Polynomial& cell : y.cells) {
      degree = std::max(degree, cell.degree());
      trial.require(cell.multilinear().degree() <= std::min(bound, size.rows * size.columns), program.tuple() + ": multilinear degree");
    }
    trial.require(degree <= bound, program.tuple() + ": degree " + std::to_string(degree));
    reached += degree == bound ? 1 : 0;
    for (int point = 0; point < kInputs; ++point) {
      const bool bits = point % 2 == 0;
      const IntMatrix u = random_matrix(random, size, bits ? 0 : -2, bits ? 1 : 2);
      const IntMatrix found = run(program, u);
      for (size_t i = 0; i < found.cells.size(); ++i) {
        trial.require(y.cells[i].evaluate(u.cells) == found.cells[i], program.tuple() + ": a polynomial is not what the layers compute");
        if (bits) trial.require(y.cells[i].multilinear().evaluate(u.cells) == found.cells[i], program.tuple() + ": multilinear form");
      }
      trial.count();
    }
  }
  trial.require(reached > 0, "no random program reached 2^L");
  trial.note(std::to_string(reached) + " of " + std::to_string(kPrograms) + " random programs have degree 2^L itself");
}

void try_reached(Trial& trial) {
  trial.size("products of rows, L ≤ 6");
  Polynomials arithmetic;
  for (int64_t layers = 1; layers <= 6; ++layers) {
    const Program program = product_of_rows(layers);
    const auto y = run<Polynomials>(program, symbols(program.outer), arithmetic);
    trial.count();
    trial.require(y.cells.back().is_multilinear() && y.cells.back().degree() == int64_t{1} << layers,
                  program.tuple() + ": degree 2^L is not reached");
  }
}

void verify(Trial& trial) {
  try_random(trial);
  try_reached(trial);
}

Example example() {
  return {product_of_rows(3), IntMatrix({8, 1}, 2), "The last of 8 rows becomes the product of all: degree 2³ in 3 layers."};
}

}  // namespace layer_degree_statement

extern const Statement statement_layer_degree{
    "layer_degree", "Lemma 'based-degree'",         "on bits, L layers are a multilinear polynomial of degree at most 2^L",
    1206,           layer_degree_statement::verify, layer_degree_statement::example};

}  // namespace based::theory
