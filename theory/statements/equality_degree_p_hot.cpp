#include "based/core/random.h"
#include "theory/degree.h"
#include "theory/recall.h"
#include "theory/statement.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace equality_degree_p_hot_statement {

// The changes of every block of both tokens from its last digit to its first. The mixed difference of equality is not zero. So no
// polynomial of degree below 2p, block-exclusive or not, equals it even on these 4^p pairs.
std::vector<Change> changes_of(const PHot& encoding, int64_t tokens) {
  std::vector<Change> changes;
  const int64_t width = encoding.block_width();
  for (int64_t block = 0; block < tokens * encoding.blocks; ++block) {
    Change change{block * width, std::vector<int64_t>(static_cast<size_t>(width)), std::vector<int64_t>(static_cast<size_t>(width))};
    if (!encoding.almost) change.before.back() = 1;
    change.after.front() = 1;
    changes.push_back(change);
  }
  return changes;
}

// The step of the paper's argument that turns a polynomial P for the p-hot encoding into Q for the almost p-hot one: 1 − Σ replaces the
// last bit of each block.
Polynomial without_last_bits(const Polynomial& p, const PHot& hot) {
  return p.substitute([&](int variable) {
    const auto base = static_cast<int>(hot.base);
    const int block = variable / base, digit = variable % base;
    if (digit + 1 < base) return Polynomial::variable(block * (base - 1) + digit);
    Polynomial rest(1);
    for (int k = 0; k + 1 < base; ++k) rest = rest - Polynomial::variable(block * (base - 1) + k);
    return rest;
  });
}

// ∏ over blocks of Σ u_k v_k, plus random multiples of (1 − Σ u_k), which are zero on all tokens: one of many polynomials that solve
// equality.
Polynomial some_solution(const PHot& hot, Random& random) {
  const auto base = static_cast<int>(hot.base), width = static_cast<int>(hot.width());
  Polynomial product(1), zero;
  for (int block = 0; block < static_cast<int>(hot.blocks); ++block) {
    Polynomial agree, is_one;
    for (int k = block * base; k < (block + 1) * base; ++k) {
      agree += Polynomial::variable(k) * Polynomial::variable(width + k);
      is_one += Polynomial::variable(k);
    }
    product = product * agree;
    const auto other = static_cast<int>(random.between(0, 2 * width - 1));
    zero += Polynomial(random.between(-3, 3)) * (Polynomial(1) - is_one) * Polynomial::variable(other);
  }
  std::vector<int> blocks = blocks_of(block_widths(hot, 2));
  return (product + zero).block_exclusive(blocks);
}

void try_substitution(Trial& trial, const PHot& hot, Random& random) {
  const PHot almost{hot.blocks, hot.base, true};
  const Polynomial p = some_solution(hot, random);
  const Polynomial q = without_last_bits(p, hot);
  trial.count();
  trial.require(q.degree() <= p.degree() && q.block_exclusive(blocks_of(block_widths(almost, 2))) == equality_polynomial(almost),
                text_of(hot) + ": the substitution does not give the unique polynomial");
}

void verify(Trial& trial) {
  trial.size("mixed differences, p ≤ 8, bases ≤ 4; substitution, c ≤ 16");
  for (const bool almost : {false, true}) {
    for (int64_t blocks = 1; blocks <= 8; ++blocks) {
      for (int64_t base = 2; base <= 4; ++base) {
        const PHot encoding{blocks, base, almost};
        const auto changes = changes_of(encoding, 2);
        const std::vector<int64_t> zeros(static_cast<size_t>(2 * encoding.width()));
        trial.count(int64_t{1} << changes.size());
        trial.require(mixed_difference(zeros, changes, equality(encoding.width())) == int64_t{1} << blocks,
                      text_of(encoding) + ": degree below 2p is not excluded");
      }
    }
  }
  Random random(19);
  for (const PHot& hot : encodings(16, false))
    for (int k = 0; k < 5; ++k) try_substitution(trial, hot, random);
  trial.note("the difference excludes every polynomial of a degree below 2p, not block-exclusive ones alone");
}

}  // namespace equality_degree_p_hot_statement

extern const Statement statement_equality_degree_p_hot{"equality_degree_p_hot", "Proposition 'deg-almost'",
                                                       "equality of p-hot tokens has no polynomial of a degree below 2p", 524'380,
                                                       equality_degree_p_hot_statement::verify};

}  // namespace based::theory
