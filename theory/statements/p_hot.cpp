#include "theory/p_hot.h"

#include <set>

#include "theory/statement.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace p_hot_statement {

void try_encoding(Trial& trial, const PHot& encoding) {
  std::set<std::vector<int64_t>> rows;
  for (int64_t token = 0; token < encoding.tokens(); ++token) {
    const auto row = encoding.encode(token);
    rows.insert(row);
    trial.require(encoding.decode(row) == token, text_of(encoding) + ": token " + std::to_string(token) + " is not found again");
    trial.count();
  }
  trial.require(static_cast<int64_t>(rows.size()) == encoding.tokens(), text_of(encoding) + ": two tokens have one encoding");
  const PHot again = p_hot(encoding.tokens(), encoding.blocks, encoding.almost);
  trial.require(again.base == encoding.base, text_of(encoding) + ": another base is found");
}

// Tries all rows of few bits: decode() must distinguish encodings from other rows.
void try_all_rows(Trial& trial, const PHot& encoding) {
  std::vector<int64_t> row(static_cast<size_t>(encoding.width()));
  int64_t found = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << row.size(); ++bits) {
    for (size_t k = 0; k < row.size(); ++k) row[k] = bits >> k & 1;
    const auto token = encoding.decode(row);
    found += token ? 1 : 0;
    trial.require(!token || encoding.encode(*token) == row, text_of(encoding) + ": a row is taken for another");
    trial.count();
  }
  trial.require(found == encoding.tokens(), text_of(encoding) + ": " + std::to_string(found) + " rows are encodings");
}

void verify(Trial& trial) {
  trial.size("all p and bases, c ≤ 128; all rows of ≤ 12 bits");
  for (const bool almost : {false, true}) {
    for (const PHot& encoding : encodings(128, almost)) {
      try_encoding(trial, encoding);
      if (encoding.width() <= 12) try_all_rows(trial, encoding);
    }
  }
  for (const int64_t tokens : {16, 64}) {
    for (int64_t blocks = 1; int64_t{1} << blocks <= tokens; ++blocks) {
      const int64_t base = p_hot(tokens, 1).base;
      for (int64_t digit = 2; digit <= base; ++digit) {
        const PHot encoding{blocks, digit};
        if (encoding.tokens() == tokens)
          trial.note("c = " + std::to_string(tokens) + ", p = " + std::to_string(blocks) + ": d = " + std::to_string(encoding.width()) +
                     ", almost " + std::to_string(PHot{blocks, digit, true}.width()));
      }
    }
  }
  trial.note("the almost p-hot encoding of base 2 is the compact one of log c bits, complemented");
}

}  // namespace p_hot_statement

extern const Statement statement_p_hot{"p_hot", "Definition 'phot'",
                                       "(almost) p-hot encodings tell c tokens apart in p·c^(1/p) bits, p fewer if almost", 65'224,
                                       p_hot_statement::verify};

}  // namespace based::theory
