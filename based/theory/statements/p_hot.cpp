#include <numeric>

#include "based/theory/encodings.h"
#include "based/theory/integers.h"
#include "based/theory/statement.h"

namespace based::theory {
namespace {

// Every token comes back, and of all vectors of bits only those of tokens are taken.
void try_encoding(Trial& trial, const PHot& encoding) {
  const std::string name = "p = " + std::to_string(encoding.p) + ", c = " + std::to_string(encoding.tokens());
  for (int64_t token = 0; token < encoding.tokens(); ++token) {
    const std::vector<int64_t> bits = encoding.encode(token);
    trial.count();
    trial.require(encoding.decode(bits) == token, name + ": a token does not come back");
    for (int64_t k = 0; k < encoding.p; ++k) {
      const auto from = bits.begin() + k * encoding.block();
      const int64_t ones = std::accumulate(from, from + encoding.block(), int64_t{0});
      trial.require(encoding.almost ? ones <= 1 : ones == 1, name + ": a block is not one-hot");
    }
  }
  constexpr int64_t kAllBits = 12;
  if (encoding.width() > kAllBits) return;
  int64_t taken = 0;
  for (int64_t number = 0; number < int64_t{1} << encoding.width(); ++number) {
    std::vector<int64_t> bits;
    for (int64_t j = 0; j < encoding.width(); ++j) bits.push_back(bit_of(number, j));
    taken += encoding.decode(bits).has_value();
  }
  trial.require(taken == encoding.tokens(), name + ": vectors of no token are taken");
}

void verify(Trial& trial) {
  trial.size("p ≤ 4, ᵖ√c ≤ 6, all tokens");
  for (int64_t p = 1; p <= 4; ++p)
    for (int64_t base = 1; base <= 6; ++base)
      for (const bool almost : {false, true}) {
        const PHot encoding{p, base, almost};
        trial.require(encoding.width() == p * (almost ? base - 1 : base), "d is not p·ᵖ√c");
        try_encoding(trial, encoding);
      }
}

}  // namespace

extern const Statement statement_p_hot{"p_hot", "Definition 'phot'", "p-hot and almost p-hot encodings of c tokens in d = p·ᵖ√c (- p) bits",
                                       verify};

}  // namespace based::theory
