#include "based/theory/polynomial.h"
#include "based/theory/primitives.h"
#include "based/theory/statements/random_layer.h"
#include "based/theory/statements/trials.h"

namespace based::theory {
namespace {

Matrix<Polynomial> variables(Size size) {
  Matrix<Polynomial> input(size);
  for (size_t k = 0; k < input.cells.size(); ++k) input.cells[k] = Polynomial::variable(static_cast<int32_t>(k));
  return input;
}

int64_t degree_of(const Program& program) {
  Polynomials arithmetic;
  int64_t degree = -1;
  for (const Polynomial& cell : run<Polynomials>(program, variables(program.outer), arithmetic).cells)
    degree = std::max(degree, cell.degree());
  return degree;
}

void verify(Trial& trial) {
  Random random(43);
  trial.size("N·d ≤ 4, L ≤ 3, random layers; L ≤ 5, squares");
  for (int k = 0; k < kSizes; ++k) {
    const Size size{random.between(1, 2), random.between(1, 2)};
    Program program{size, size, {}};
    for (int64_t layer = random.between(1, size.rows * size.columns > 2 ? 2 : 3); layer > 0; --layer)
      program.layers.push_back(random_layer(random, size));
    trial.count();
    trial.require(degree_of(program) <= int64_t{1} << program.depth(), "a polynomial of degree above 2^L");
  }
  for (int64_t depth = 1; depth <= 5; ++depth) {
    const Program squares{{1, 1}, {1, 1}, std::vector<Layer>(static_cast<size_t>(depth), Layer{"square", identity(1), {}, {}, {{0}}})};
    trial.count();
    trial.require(degree_of(squares) == int64_t{1} << depth, "squares do not reach 2^L");
  }
}

}  // namespace

extern const Statement statement_layer_degree{"layer_degree", "Lemma 'based-degree'",
                                              "L layers compute polynomials of degree ≤ 2^L, which squares reach", verify};

}  // namespace based::theory
