#include "based/theory/polynomial.h"

#include <gtest/gtest.h>

#include "based/core/error.h"
#include "based/theory/encodings.h"

namespace based::theory {
namespace {

Polynomial x(int32_t number) { return Polynomial::variable(number); }
Polynomial c(int64_t value) { return Polynomial::constant(value); }

TEST(Polynomial, AddsAndMultiplies) {
  const Polynomial square = (x(0) + c(1)) * (x(0) + c(1));
  EXPECT_EQ(square, x(0) * x(0) + c(2) * x(0) + c(1));
  EXPECT_EQ(square.degree(), 2);
  EXPECT_EQ(square.at({4}), 25);
  EXPECT_EQ(square.text(), "1 + 2 x0 + x0 x0");
  EXPECT_EQ(square.multilinear(), c(1) + c(3) * x(0));
  EXPECT_EQ((square + c(-1) * square), Polynomial());
  EXPECT_EQ(Polynomial().degree(), -1);
  EXPECT_EQ(Polynomial().text(), "0");
  EXPECT_THROW(c(INT64_MAX) * c(2), Error);
}

TEST(Encodings, OfTokens) {
  const PHot hot{2, 3}, almost{2, 3, true};
  EXPECT_EQ(hot.tokens(), 9);
  EXPECT_EQ(hot.width(), 6);
  EXPECT_EQ(almost.width(), 4);
  EXPECT_EQ(hot.encode(5), (std::vector<int64_t>{0, 0, 1, 0, 1, 0}));  // 5 = 2 + 1·3
  EXPECT_EQ(almost.encode(5), (std::vector<int64_t>{0, 0, 0, 1}));
  EXPECT_EQ(almost.decode({0, 0, 0, 1}), 5);
  EXPECT_EQ(hot.decode({0, 0, 0, 0, 1, 0}), std::nullopt);
  EXPECT_EQ(hot.decode({0, 0, 2, 0, 1, 0}), std::nullopt);
  EXPECT_EQ(hot.decode({0, 1, 1, 0, 1, 0}), std::nullopt);
  EXPECT_EQ(hot.decode({1, 0, 0}), std::nullopt);
  EXPECT_TRUE(block_exclusive(x(0) * x(3) + x(1), hot));
  EXPECT_FALSE(block_exclusive(x(0) * x(2), hot));
  EXPECT_FALSE(block_exclusive(x(0) * x(0), hot));
}

// Equality of two tokens is a polynomial of degree 2p and no less.
TEST(Encodings, EqualityHasDegreeTwoP) {
  for (int64_t p = 1; p <= 3; ++p) {
    for (const int64_t base : {2, 3}) {
      const PHot one{p, base, true}, pair{2 * p, base, true};
      std::vector<int64_t> equal;
      for (int64_t tokens = 0; tokens < pair.tokens(); ++tokens) equal.push_back(tokens / one.tokens() == tokens % one.tokens() ? 1 : 0);
      EXPECT_EQ(interpolate(equal, pair).degree(), 2 * p);
    }
  }
}

}  // namespace
}  // namespace based::theory
