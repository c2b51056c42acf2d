#include "theory/polynomial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/error.h"
#include "based/core/random.h"
#include "theory/degree.h"

namespace based::theory {
namespace polynomial_test {

Polynomial x(int variable) { return Polynomial::variable(variable); }

Polynomial random_polynomial(Random& random, int variables) {
  Polynomial sum;
  for (int term = 0; term < 6; ++term) {
    Polynomial product(random.between(-5, 5));
    for (int64_t factors = random.between(0, 4); factors > 0; --factors)
      product = product * x(static_cast<int>(random.between(0, variables - 1)));
    sum += product;
  }
  return sum;
}

TEST(Polynomial, KeepsNoTermsThatCancel) {
  EXPECT_EQ((x(0) + Polynomial(1)) * (x(0) - Polynomial(1)), x(0) * x(0) - Polynomial(1));
  EXPECT_EQ((x(0) - x(0)).terms().size(), 0u);
  EXPECT_EQ((x(0) - x(0)).degree(), -1);
  EXPECT_EQ(Polynomial(3).degree(), 0);
  EXPECT_EQ((x(1) * x(0) * x(0)).degree(), 3);
}

TEST(Polynomial, SumsAndProductsAreThoseOfValues) {
  Random random(1);
  for (int k = 0; k < 200; ++k) {
    const Polynomial a = random_polynomial(random, 3), b = random_polynomial(random, 3);
    const std::vector<int64_t> at{random.between(-4, 4), random.between(-4, 4), random.between(-4, 4)};
    EXPECT_EQ((a + b).evaluate(at), a.evaluate(at) + b.evaluate(at));
    EXPECT_EQ((a - b).evaluate(at), a.evaluate(at) - b.evaluate(at));
    EXPECT_EQ((a * b).evaluate(at), a.evaluate(at) * b.evaluate(at));
    const Polynomial replaced = a.substitute([&](int variable) { return variable == 0 ? b : x(variable); });
    EXPECT_EQ(replaced.evaluate(at), a.evaluate(std::vector<int64_t>{b.evaluate(at), at[1], at[2]}));
  }
}

TEST(Polynomial, AddsItselfToItself) {
  Polynomial a = x(0) + Polynomial(2) * x(1);
  a += a;
  EXPECT_EQ(a, Polynomial(2) * x(0) + Polynomial(4) * x(1));
}

TEST(Polynomial, RefusesCoefficientsBeyond64Bits) {
  Polynomial large(INT64_MAX);
  EXPECT_THROW(large += Polynomial(1), Error);
  EXPECT_THROW(large = large * x(0) * Polynomial(2), Error);
  EXPECT_THROW((x(0) * x(0)).evaluate(std::vector<int64_t>{INT64_MAX}), Error);
}

TEST(Polynomial, IsWrittenAsText) {
  const auto name = [](int variable) { return "x" + std::to_string(variable); };
  EXPECT_EQ(Polynomial().text(name), "0");
  EXPECT_EQ((Polynomial(1) - Polynomial(2) * x(0) * x(1) + x(1)).text(name), "1 - 2 x0 x1 + x1");
  EXPECT_EQ((Polynomial(-1) * x(0)).text(name), "-x0");
}

TEST(Interpolate, GivesTheFunctionOfAnyBlocks) {
  Random random(2);
  for (int k = 0; k < 100; ++k) {
    std::vector<int> widths;
    for (int64_t blocks = random.between(1, 4); blocks > 0; --blocks) widths.push_back(static_cast<int>(random.between(1, 3)));
    std::vector<int64_t> values;
    const Polynomial unique = interpolate(widths, [&](std::span<const int64_t>) { return values.emplace_back(random.between(-9, 9)); });
    EXPECT_TRUE(unique.is_block_exclusive(blocks_of(widths)));
    size_t at = 0;
    for_each_input(widths, [&](std::span<const int64_t> input) { EXPECT_EQ(unique.evaluate(input), values[at++]); });
    EXPECT_EQ(at, values.size());
  }
}

TEST(Interpolate, RefusesTooManyInputs) {
  const std::vector<int> widths(23, 1);
  EXPECT_THROW(interpolate(widths, [](std::span<const int64_t>) { return int64_t{0}; }), Error);
}

// Every polynomial of a degree below the number of changes has a mixed difference of 0; the product of all changed variables does not.
TEST(MixedDifference, IsZeroBelowItsDegree) {
  Random random(3);
  const std::vector<Change> changes{{0, {0}, {1}}, {1, {0, 1}, {1, 0}}, {3, {2}, {-1}}};
  for (int k = 0; k < 200; ++k) {
    const Polynomial any = random_polynomial(random, 4);
    Polynomial low;
    for (const auto& [monomial, coefficient] : any.terms()) {
      if (monomial.size() >= changes.size()) continue;
      Polynomial term(coefficient);
      for (const int variable : monomial) term = term * x(variable);
      low += term;
    }
    const std::vector<int64_t> input{random.between(-3, 3), random.between(-3, 3), random.between(-3, 3), random.between(-3, 3)};
    EXPECT_EQ(mixed_difference(input, changes, [&](std::span<const int64_t> at) { return low.evaluate(at); }), 0);
  }
  EXPECT_EQ(mixed_difference({0, 0, 0, 0}, changes, [](std::span<const int64_t> at) { return at[0] * at[1] * at[3]; }), -3);
}

TEST(LeastLayers, AreThoseThatReachTheDegree) {
  EXPECT_EQ(least_layers(1), 0);
  EXPECT_EQ(least_layers(8), 3);
  EXPECT_EQ(least_layers(9), 4);
  EXPECT_EQ(least_layers(9, 3), 2);
  EXPECT_EQ(least_layers(INT64_MAX), 63);
}

}  // namespace polynomial_test
}  // namespace based::theory
