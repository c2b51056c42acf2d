#include "based/theory/encodings.h"

#include "based/core/error.h"
#include "based/theory/integers.h"

namespace based::theory {

int64_t PHot::tokens() const {
  int64_t count = 1;
  for (int64_t k = 0; k < p; ++k) count = Integers::product(count, base);
  return count;
}

std::vector<int64_t> PHot::encode(int64_t token) const {
  std::vector<int64_t> bits(static_cast<size_t>(width()));
  for (int64_t k = 0; k < p; ++k, token /= base)
    if (const int64_t digit = token % base; digit < block()) bits[static_cast<size_t>(k * block() + digit)] = 1;
  return bits;
}

std::optional<int64_t> PHot::decode(const std::vector<int64_t>& bits) const {
  if (static_cast<int64_t>(bits.size()) != width()) return std::nullopt;
  int64_t token = 0;
  for (int64_t k = p; k-- > 0;) {
    int64_t digit = almost ? base - 1 : -1, ones = 0;
    for (int64_t j = 0; j < block(); ++j) {
      const int64_t bit = bits[static_cast<size_t>(k * block() + j)];
      if (bit != 0 && bit != 1) return std::nullopt;
      if (bit == 1) digit = j, ++ones;
    }
    if (ones > 1 || digit < 0) return std::nullopt;
    token = token * base + digit;
  }
  return token;
}

bool block_exclusive(const Polynomial& polynomial, const PHot& encoding) {
  for (const auto& [monomial, coefficient] : polynomial.terms())
    for (size_t k = 1; k < monomial.size(); ++k)
      if (monomial[k - 1] / encoding.block() == monomial[k] / encoding.block()) return false;
  return true;
}

Polynomial to_block_exclusive(const Polynomial& polynomial, const PHot& encoding) {
  Polynomial result;
  const Polynomial linear = polynomial.multilinear();
  for (const auto& [monomial, coefficient] : linear.terms()) {
    Polynomial one;
    one.add(monomial, coefficient);
    if (block_exclusive(one, encoding)) result.add(monomial, coefficient);
  }
  return result;
}

// The coefficient of a set of variables is the value on the token that has those bits, less the coefficients of its proper subsets. Worked
// digit by digit: behind step k the digits below k stand for a variable (or, the largest digit, for none) instead of a value.
Polynomial interpolate(const std::vector<int64_t>& values, const PHot& almost) {
  BASED_ASSERT(almost.almost && static_cast<int64_t>(values.size()) == almost.tokens());
  std::vector<int64_t> coefficients = values;
  int64_t stride = 1;
  for (int64_t k = 0; k < almost.p; ++k, stride *= almost.base) {
    for (int64_t token = 0; token < almost.tokens(); ++token) {
      const int64_t digit = token / stride % almost.base, none = almost.base - 1;
      if (digit == none) continue;
      int64_t& coefficient = coefficients[static_cast<size_t>(token)];
      coefficient = Integers::sum(coefficient, -coefficients[static_cast<size_t>(token + (none - digit) * stride)]);
    }
  }
  Polynomial result;
  for (int64_t token = 0; token < almost.tokens(); ++token) {
    Polynomial::Monomial monomial;
    const std::vector<int64_t> bits = almost.encode(token);
    for (size_t j = 0; j < bits.size(); ++j)
      if (bits[j] == 1) monomial.push_back(static_cast<int32_t>(j));
    result.add(monomial, coefficients[static_cast<size_t>(token)]);
  }
  return result;
}

}  // namespace based::theory
