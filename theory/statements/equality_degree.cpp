#include "theory/recall.h"
#include "theory/statement.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace equality_degree_statement {

void verify(Trial& trial) {
  trial.size("all pairs, all p and bases, c ≤ 64");
  for (const PHot& encoding : encodings(64, true)) {
    const auto widths = block_widths(encoding, 2);
    const Polynomial unique = interpolate(widths, equality(encoding.width()));
    trial.count(encoding.tokens() * encoding.tokens());
    trial.require(unique.degree() == 2 * encoding.blocks, text_of(encoding) + ": degree " + std::to_string(unique.degree()));
    trial.require(unique.is_block_exclusive(blocks_of(widths)), text_of(encoding) + ": not block-exclusive");
    if (encoding.tokens() <= 32) trial.require(unique == equality_polynomial(encoding), text_of(encoding) + ": not the printed product");
  }
  trial.note("p = 1, c = 3: " + equality_polynomial({1, 3, true}).text([](int variable) {
    return std::string(1, variable < 2 ? 'u' : 'v') + std::to_string(variable % 2);
  }));
}

}  // namespace equality_degree_statement

extern const Statement statement_equality_degree{"equality_degree", "Lemma 'eq-almost'",
                                                 "equality of almost p-hot tokens is a block-exclusive polynomial of degree 2p", 108'475,
                                                 equality_degree_statement::verify};

}  // namespace based::theory
