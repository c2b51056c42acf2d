#include "based/theory/encodings.h"
#include "based/theory/statements/trials.h"

namespace based::theory {
namespace {

Polynomial random_polynomial(Random& random, int64_t variables) {
  Polynomial polynomial = Polynomial::constant(random.between(-3, 3));
  for (int64_t k = random.between(0, 8); k > 0 && variables > 0; --k) {
    Polynomial term = Polynomial::constant(random.between(-3, 3));
    for (int64_t degree = random.between(1, 5); degree > 0; --degree)
      term = term * Polynomial::variable(static_cast<int32_t>(random.between(0, variables - 1)));
    polynomial = polynomial + term;
  }
  return polynomial;
}

std::vector<int64_t> values_of(const Polynomial& polynomial, const PHot& encoding) {
  std::vector<int64_t> values;
  for (int64_t token = 0; token < encoding.tokens(); ++token) values.push_back(polynomial.at(encoding.encode(token)));
  return values;
}

PHot random_encoding(Random& random, bool almost) { return {random.between(1, 3), random.between(1, 4), almost}; }

// Any polynomial has a block-exclusive one of no larger degree that is the same on every token.
void try_existence(Trial& trial, Random& random) {
  for (int k = 0; k < 20 * kSizes; ++k) {
    const PHot encoding = random_encoding(random, k % 2 == 0);
    const Polynomial polynomial = random_polynomial(random, encoding.width()), exclusive = to_block_exclusive(polynomial, encoding);
    trial.count();
    trial.require(block_exclusive(exclusive, encoding), "a polynomial is not block-exclusive");
    trial.require(exclusive.degree() <= std::max<int64_t>(0, polynomial.degree()), "the degree grew");
    trial.require(values_of(exclusive, encoding) == values_of(polynomial, encoding), "a value changed");
  }
}

// In the almost p-hot encoding every function has one, and whoever has its values has it.
void try_uniqueness(Trial& trial, Random& random) {
  for (int k = 0; k < 5 * kSizes; ++k) {
    const PHot encoding = random_encoding(random, true);
    const std::vector<int64_t> values = random_matrix(random, {1, encoding.tokens()}, 0, 1).cells;
    const Polynomial polynomial = interpolate(values, encoding);
    trial.count(2);
    trial.require(block_exclusive(polynomial, encoding) && values_of(polynomial, encoding) == values, "a function has no polynomial");
    const Polynomial other = to_block_exclusive(random_polynomial(random, encoding.width()), encoding);
    trial.require(interpolate(values_of(other, encoding), encoding) == other, "two polynomials have the same values");
  }
}

void verify(Trial& trial) {
  Random random(41);
  trial.size("p ≤ 3, ᵖ√c ≤ 4, all tokens");
  try_existence(trial, random);
  try_uniqueness(trial, random);

  const PHot hot{2, 3};
  const auto x = [](int32_t number) { return Polynomial::variable(number); };
  const Polynomial one = Polynomial::constant(1), same_block = one + x(0) * x(1), block = x(0) + x(1) + x(2);
  trial.correct(
      {"a polynomial that represents a function of tokens cannot have a monomial of two variables of a block",
       same_block.text() + " represents the function 1 and has one", "such monomials are 0 on every token, and are dropped, as powers are"},
      values_of(same_block, hot) == values_of(one, hot) && !block_exclusive(same_block, hot));
  trial.correct({"the bound for the p-hot encoding takes uniqueness from the almost p-hot one",
                 "p-hot, 1 and " + block.text() + " are block-exclusive and equal on every token",
                 "uniqueness is of the almost p-hot encoding; for the bound it is enough that there is such a polynomial of degree ≤ 2^L"},
                values_of(block, hot) == values_of(one, hot) && block_exclusive(block, hot) && block != one);
}

}  // namespace

extern const Statement statement_block_exclusive{"block_exclusive", "Lemma 'block-ex', Proposition 'unique-almost'",
                                                 "functions of tokens are block-exclusive polynomials, of almost p-hot tokens in one way",
                                                 verify};

}  // namespace based::theory
