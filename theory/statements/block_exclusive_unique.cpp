#include "based/core/random.h"
#include "theory/polynomial.h"
#include "theory/statement.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace block_exclusive_unique_statement {

// Tries all functions of a token if there are at most 2^9, otherwise random ones. Each interpolated polynomial equals its function,
// distinct functions have distinct polynomials, and the number of block-exclusive monomials equals the number of tokens: so the map is a
// bijection.
void try_functions(Trial& trial, const PHot& encoding, Random& random) {
  const auto widths = block_widths(encoding, 1);
  const auto blocks = blocks_of(widths);
  const int64_t tokens = encoding.tokens();
  const bool all = tokens <= 9;
  for (int64_t number = 0; number < (all ? int64_t{1} << tokens : 50); ++number) {
    std::vector<int64_t> table;
    for (int64_t token = 0; token < tokens; ++token) table.push_back(all ? number >> token & 1 : random.between(-5, 5));
    const auto f = [&](std::span<const int64_t> row) { return table[static_cast<size_t>(*encoding.decode(row))]; };
    const Polynomial unique = interpolate(widths, f);
    trial.require(unique.is_block_exclusive(blocks), text_of(encoding) + ": not block-exclusive");
    for (int64_t token = 0; token < tokens; ++token) {
      trial.require(unique.evaluate(encoding.encode(token)) == table[static_cast<size_t>(token)],
                    text_of(encoding) + ": the polynomial is not the function");
      trial.count();
    }
  }
}

// As in the paper's proof: a non-zero block-exclusive polynomial is not zero if only the variables of one of its minimal terms are 1.
void try_differences(Trial& trial, const PHot& encoding, Random& random) {
  const auto widths = block_widths(encoding, 1);
  for (int k = 0; k < 20; ++k) {
    const Polynomial difference = interpolate(widths, [&](std::span<const int64_t>) { return random.between(-1, 1); });
    if (difference == Polynomial()) continue;
    const Monomial* least = nullptr;
    for (const auto& [monomial, coefficient] : difference.terms())
      if (least == nullptr || monomial.size() < least->size()) least = &monomial;
    std::vector<int64_t> row(static_cast<size_t>(encoding.width()));
    for (const int variable : *least) row[static_cast<size_t>(variable)] = 1;
    trial.require(encoding.decode(row).has_value(), text_of(encoding) + ": the least term's variables are no token");
    trial.require(difference.evaluate(row) == difference.coefficient(*least), text_of(encoding) + ": the least term is not what is left");
    trial.count();
  }
}

void verify(Trial& trial) {
  trial.size("all functions for c ≤ 9, random ones for c ≤ 81");
  Random random(17);
  for (const PHot& encoding : encodings(81, true)) {
    try_functions(trial, encoding, random);
    try_differences(trial, encoding, random);
  }
}

}  // namespace block_exclusive_unique_statement

extern const Statement statement_block_exclusive_unique{"block_exclusive_unique", "Proposition 'unique-almost'",
                                                        "of an almost p-hot token's functions the block-exclusive polynomial is unique",
                                                        208'359, block_exclusive_unique_statement::verify};

}  // namespace based::theory
