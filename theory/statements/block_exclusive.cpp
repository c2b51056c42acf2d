#include "based/core/random.h"
#include "theory/polynomial.h"
#include "theory/statement.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace block_exclusive_statement {

Polynomial random_polynomial(Random& random, int variables) {
  Polynomial sum;
  for (int64_t terms = random.between(1, 12); terms > 0; --terms) {
    Polynomial term(random.between(-9, 9));
    for (int64_t factors = random.between(0, 6); factors > 0; --factors)
      term = term * Polynomial::variable(static_cast<int>(random.below(static_cast<uint64_t>(variables))));
    sum += term;
  }
  return sum;
}

void try_any_polynomial(Trial& trial, const PHot& encoding, Random& random) {
  const auto widths = block_widths(encoding, 1);
  const auto blocks = blocks_of(widths);
  for (int k = 0; k < 20; ++k) {
    const Polynomial any = random_polynomial(random, static_cast<int>(encoding.width()));
    const Polynomial reduced = any.block_exclusive(blocks);
    trial.require(reduced.is_block_exclusive(blocks) && reduced.is_multilinear() && reduced.degree() <= any.degree(),
                  text_of(encoding) + ": not block-exclusive");
    for (int64_t token = 0; token < encoding.tokens(); ++token) {
      const auto row = encoding.encode(token);
      trial.require(reduced.evaluate(row) == any.evaluate(row), text_of(encoding) + ": the block-exclusive form differs");
      trial.count();
    }
  }
}

void verify(Trial& trial) {
  trial.size("random polynomials, all p and bases, c ≤ 64");
  Random random(13);
  for (const bool almost : {false, true})
    for (const PHot& encoding : encodings(64, almost)) try_any_polynomial(trial, encoding, random);

  const std::vector<int> one_block{0, 0};
  const Polynomial both = Polynomial::variable(0) * Polynomial::variable(1);
  trial.count();
  trial.correct({"reducing by uᵢ² − uᵢ for each variable makes a polynomial block-exclusive",
                 "u₀u₁ of one block of two stays as it is, and is not block-exclusive",
                 "terms with two variables of a block, which are 0 on every encoding, are dropped as well"},
                both.multilinear() == both && !both.is_block_exclusive(one_block) && both.block_exclusive(one_block) == Polynomial(0));
}

}  // namespace block_exclusive_statement

extern const Statement statement_block_exclusive{"block_exclusive", "Lemma 'block-ex'",
                                                 "a function of (almost) p-hot tokens is a block-exclusive polynomial", 99'721,
                                                 block_exclusive_statement::verify};

}  // namespace based::theory
