#include "based/core/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace based {
namespace random_test {

using ::testing::ElementsAre;

// The known answers of the reference implementation (Random123, kat_vectors, philox4x32 10).
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(Random, WordsAreThePhiloxBlocksInOrder) {
  Random random(0);
  EXPECT_EQ(random.next32(), 0x6627e8d5u);
  EXPECT_EQ(random.next32(), 0xe169c58du);
  EXPECT_EQ(random.next64(), 0x9b00dbd8bc57ac4cu);
  Random other(0x299f31d0a4093822u, 0x0370734413198a2eu);
  other.seek(0x85a308d3243f6a88u << 2);
  EXPECT_NE(other.next32(), 0xd16cfe09u) << "positions count words, so the counter's top two bits are never set";
  Random low(0x299f31d0a4093822u, 5);
  low.seek(4 * 0x123456789abull + 3);
  EXPECT_EQ(low.next32(), philox4x32({0x456789abu, 0x123u, 5, 0}, {0xa4093822u, 0x299f31d0u})[3]);
}

TEST(Random, ContinuesFromItsPosition) {
  Random whole(7, 3);
  for (int i = 0; i < 100; ++i) {
    Random resumed(whole.seed(), whole.stream());
    resumed.seek(whole.position());
    Random copy = whole;
    for (int j = 0; j < 9; ++j) EXPECT_EQ(resumed.next32(), copy.next32());
    if (i % 3 == 0) whole.next32();
    if (i % 3 == 1) whole.normal();
    if (i % 3 == 2) whole.below(1000);
  }
}

TEST(Random, SeedsAndStreamsDiffer) {
  std::set<uint64_t> firsts;
  for (uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
    for (uint64_t stream : {0ull, 1ull, 1ull << 32, ~0ull}) firsts.insert(Random(seed, stream).next64());
  }
  EXPECT_EQ(firsts.size(), 16u);
}

TEST(Random, UniformHasTheRightMomentsAndRange) {
  Random random(1);
  const int n = 1'000'000;
  double sum = 0, squares = 0, low = 1, high = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random.uniform();
    sum += x;
    squares += x * x;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  EXPECT_NEAR(sum / n, 0.5, 5 * 0.289 / 1000);
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * 0.298 / 1000);
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  EXPECT_LT(low, 1e-5);
  EXPECT_GT(high, 1 - 1e-5);
}

TEST(Random, NormalHasTheRightDistribution) {
  Random random(2);
  const int n = 1'000'000;
  double sum = 0, squares = 0, fourth = 0;
  std::vector<int> within(5);
  for (int i = 0; i < n; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    for (int k = 1; k <= 4; ++k) within[static_cast<size_t>(k)] += std::fabs(x) < k;
  }
  EXPECT_NEAR(sum / n, 0, 5e-3);
  EXPECT_NEAR(squares / n, 1, 5 * 1.41e-3);
  EXPECT_NEAR(fourth / n, 3, 5 * 9.8e-3);
  for (int k = 1; k <= 4; ++k) {
    const double p = std::erf(k / std::sqrt(2.0));
    EXPECT_NEAR(static_cast<double>(within[static_cast<size_t>(k)]) / n, p, 5 * std::sqrt(p * (1 - p) / n) + 1e-6) << k;
  }
}

// The normal number x for a uniform u must satisfy Φ(x) = u. Checked by erfc, far into both tails.
TEST(Random, NormalInvertsTheDistributionFunction) {
  Random random(3);
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t before = random.position();
    const double x = random.normal();
    random.seek(before);
    const double u = (static_cast<double>(random.next64() >> 12) + 0.5) * 0x1p-52;
    const double phi = std::erfc(-x / std::sqrt(2.0)) / 2;
    EXPECT_NEAR(phi / u, 1, 1e-12 / u) << x;
    EXPECT_NEAR(phi, u, 4e-16 + 1e-13 * u) << x;
  }
}

TEST(Random, NormalIsFixedToTheBit) {
  Random random(42, 1);
  std::vector<double> drawn(1000);
  for (double& x : drawn) x = random.normal();
  EXPECT_EQ(drawn[0], -0x1.24f0c571f777ap+0);
  EXPECT_EQ(drawn[999], 0x1.d482eca6e5b21p-2);
}

TEST(Random, BelowIsUniformForAwkwardBounds) {
  for (const uint64_t bound : {1ull, 2ull, 3ull, 10ull, 1000ull}) {
    Random random(4, bound);
    const int n = 200'000;
    std::vector<int> counts(bound);
    for (int i = 0; i < n; ++i) counts.at(random.below(bound))++;
    double chi2 = 0;
    const double expected = static_cast<double>(n) / static_cast<double>(bound);
    for (const int count : counts) chi2 += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>(bound) - 1;
    EXPECT_LE(chi2, freedom + 5 * std::sqrt(2 * freedom) + 1) << bound;
  }
  // For the bound 3·2^62 a plain remainder would return numbers of the lower third twice as often.
  Random random(5);
  const uint64_t bound = 3ull << 62;
  int low = 0;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t x = random.below(bound);
    ASSERT_LT(x, bound);
    low += x < (1ull << 62);
  }
  EXPECT_NEAR(low / 1e5, 1.0 / 3, 0.008);
}

TEST(Random, BetweenIncludesBothEndsAndAllRanges) {
  Random random(6);
  std::set<int64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.between(-2, 2));
  EXPECT_THAT(seen, ElementsAre(-2, -1, 0, 1, 2));
  EXPECT_EQ(random.between(9, 9), 9);
  bool negative = false, positive = false;
  for (int i = 0; i < 100; ++i) (random.between(INT64_MIN, INT64_MAX) < 0 ? negative : positive) = true;
  EXPECT_TRUE(negative && positive);
  for (int i = 0; i < 100; ++i) EXPECT_LE(random.between(INT64_MIN, INT64_MIN + 1), INT64_MIN + 1);
}

}  // namespace random_test
}  // namespace based
