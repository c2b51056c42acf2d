// p-hot and almost p-hot encodings of tokens, and polynomials that are block-exclusive in them.
#pragma once
#include <optional>
#include <vector>

#include "based/theory/polynomial.h"

namespace based::theory {

// A token 0 … base^p - 1 as p digits, the least first, each one-hot in a block of `base` bits; almost p-hot: without the last bit of each
// block, so that the largest digit is a block of zeros. A pair of tokens is one token of 2p digits.
struct PHot {
  int64_t p, base;
  bool almost = false;

  int64_t tokens() const;  // c = base^p
  int64_t block() const { return base - (almost ? 1 : 0); }
  int64_t width() const { return p * block(); }  // d
  std::vector<int64_t> encode(int64_t token) const;
  std::optional<int64_t> decode(const std::vector<int64_t>& bits) const;  // nothing where they are no token's
};

// No monomial holds two variables of a block, nor a power.
bool block_exclusive(const Polynomial& polynomial, const PHot& encoding);
// The same on every token: powers become one, and monomials of two variables of a block, which are 0 on every token, go.
Polynomial to_block_exclusive(const Polynomial& polynomial, const PHot& encoding);
// The block-exclusive polynomial in an almost p-hot encoding that has values[t] on every token t; there is one only.
Polynomial interpolate(const std::vector<int64_t>& values, const PHot& almost);

}  // namespace based::theory
