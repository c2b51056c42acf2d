#include "based/kernels/sampling/sampling.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "tests/kernels/common/buffer.h"
#include "tests/kernels/sampling/sample_reference.h"

namespace based::kernels {
namespace sample_test {

constexpr int64_t kWords = 50257;  // vocabulary of GPT-2

// The tokens of rows with the same logits; row r has seeds[r] and positions[r].
std::vector<int64_t> draw(const std::vector<float>& logits, float temperature, const std::vector<int64_t>& seeds,
                          const std::vector<int64_t>& positions) {
  const size_t rows = seeds.size(), vocab = logits.size();
  std::vector<int64_t> tokens(rows, -2);
  const std::vector<int64_t> none(rows);
  const std::vector<float> temperatures(rows, temperature), ones(rows, 1.F), zeros(rows);
  std::vector<uint32_t> seen(rows * static_cast<size_t>(sample_seen_words(static_cast<int64_t>(vocab))));
  Sample to;
  to.logits = logits.data(), to.token = tokens.data(), to.position = positions.data(), to.seed = seeds.data();
  to.temperature = temperatures.data(), to.top_k = none.data(), to.top_p = ones.data(), to.min_p = zeros.data();
  to.penalty = ones.data(), to.seen = seen.data();
  to.rows = static_cast<int64_t>(rows), to.vocab = static_cast<int64_t>(vocab);
  to.logits_stride = 0;
  EXPECT_TRUE(cpu::sample(to).ok());
  return tokens;
}

std::vector<int64_t> numbers(int64_t count, int64_t first = 0) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

// Σ (found − expected)² / expected, whose mean is about the number n of groups and whose standard deviation about √(2n).
double chi_square(const std::vector<double>& found, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < found.size(); ++i) sum += (found[i] - expected[i]) * (found[i] - expected[i]) / expected[i];
  return sum;
}
void expect_like(const std::vector<double>& found, const std::vector<double>& expected) {
  const double groups = static_cast<double>(found.size());
  EXPECT_NEAR(chi_square(found, expected), groups, 5 * std::sqrt(2 * groups));
}

// Gumbel numbers below -2 come from v just below 1, where there are few floats, so they are coarse.
bool is_close(float found, long double exact) { return exact > -2 ? std::fabs(found - exact) < 2e-5L : found < -1.9F; }

// The mantissa of v holds the upper 24 bits; the lower bits decide how it is rounded.
TEST(SampleGumbel, IsFiniteForAllBitsAndThatOfTheBits) {
  for (uint64_t upper = 0; upper < uint64_t{1} << 24; ++upper)
    for (const uint64_t lower : {uint64_t{0}, (uint64_t{1} << 40) - 1}) {
      const uint64_t bits = upper << 40 | lower;
      const float found = sample_gumbel(bits);
      ASSERT_TRUE(std::isfinite(found)) << std::hex << bits;
      if (bits < uint64_t{1} << 30 || (upper % 61 != 0 && upper + 16 < uint64_t{1} << 24 && upper > 16)) continue;
      ASSERT_TRUE(is_close(found, tests::exact_gumbel(bits))) << std::hex << bits << ": " << found;
    }
}

TEST(SampleGumbel, IsFiniteForTheFirstAndLastBits) {
  for (const uint64_t bits : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) EXPECT_TRUE(std::isfinite(sample_gumbel(bits)));
}

// Compares the share of all 2^64 bit patterns whose Gumbel number is at least t with 1 − e^(−e^(−t)). The number decreases with the bits.
TEST(SampleGumbel, HasTheTailOfTheDistribution) {
  for (const double t : {-1.0, 0.0, 2.0, 5.0, 10.0, 17.0, 20.0, 30.0, 38.0, 42.0}) {
    uint64_t below = 0;  // the largest such bits found so far
    for (int bit = 63; bit >= 0; --bit)
      if (const uint64_t next = below | uint64_t{1} << bit; static_cast<double>(sample_gumbel(next)) >= t) below = next;
    const double share = (static_cast<double>(below) + 1) * 0x1p-64, exact = -std::expm1(-std::exp(-t));
    EXPECT_NEAR(share / exact, 1, 1e-4 + 2 / static_cast<double>(below)) << t;
  }
}

TEST(SampleGumbel, OfAWordIsThatOfThePublishedGenerator) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2039}, ~uint64_t{0}})
    for (const uint64_t position : {0, 1, 5, 1 << 20})
      for (uint64_t word = 0; word < 300; word += 7) {
        const float found = sample_gumbel(sample_bits(sample_key(seed, position), word));
        EXPECT_TRUE(is_close(found, tests::exact_gumbel(seed, position, word))) << found;
      }
}

// A draw fails where a random number outweighs the gap of 100 to the next word; IsFiniteForAllBits bounds the numbers.
TEST(SampleDraws, AtALowTemperatureTakeTheMostLikelyOfManyWords) {
  std::vector<float> logits(kWords);
  for (int64_t w = 0; w < kWords; ++w) logits[w] = static_cast<float>((w * 7919) % kWords) * 1e-3F;
  const int64_t best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  for (const int64_t token : draw(logits, 1e-5F, numbers(64), numbers(64, 3))) EXPECT_EQ(token, best);
}

// Groups of words with ranks 2^i to 2^(i+1) − 1; the last group has all words that are expected only once or twice in this number of draws.
TEST(SampleDraws, OfManyWordsHaveTheProbabilitiesOfTheSoftmax) {
  constexpr int64_t draws = 2048, groups = 11;
  const auto rank = [](int64_t word) { return (word * 7919) % kWords + 1; };
  const auto group = [&](int64_t word) { return std::min<int64_t>(std::bit_width(static_cast<uint64_t>(rank(word))), groups) - 1; };
  std::vector<float> logits(kWords);
  std::vector<double> expected(groups), found(groups);
  for (int64_t w = 0; w < kWords; ++w) {
    logits[w] = -1.6F * std::log(static_cast<float>(rank(w)));
    expected[group(w)] += std::pow(static_cast<double>(rank(w)), -2);
  }
  const double whole = std::accumulate(expected.begin(), expected.end(), 0.0);
  for (double& one : expected) one *= draws / whole;
  for (const int64_t token : draw(logits, 0.8F, numbers(draws, 100), numbers(draws, 7))) ++found[group(token)];
  EXPECT_LT(expected.back(), 2);
  expect_like(found, expected);
}

// Equal logits, so that tokens depend only on the random numbers.
TEST(SampleDraws, OfNeighbouringSeedsAndPositionsAreIndependent) {
  constexpr int64_t seeds = 256, positions = 64, words = 512;
  std::vector<int64_t> seed, position;
  for (int64_t i = 0; i < seeds * positions; ++i) seed.push_back(i / positions), position.push_back(i % positions);
  const std::vector<int64_t> token = draw(std::vector<float>(words), 1, seed, position);
  const auto at = [&](int64_t s, int64_t p) { return token[static_cast<size_t>(s * positions + p)]; };
  std::vector<double> found(words);
  for (const int64_t one : token) ++found[one];
  expect_like(found, std::vector<double>(words, static_cast<double>(token.size()) / words));
  for (int64_t ds = 0; ds <= 3; ++ds)
    for (int64_t dp = ds == 0 ? 1 : -3; dp <= 3; ++dp) {
      std::vector<double> difference(words);
      double pairs = 0;
      for (int64_t s = 0; s + ds < seeds; ++s)
        for (int64_t p = std::max<int64_t>(0, -dp); p + std::max<int64_t>(0, dp) < positions; ++p, ++pairs)
          ++difference[(at(s + ds, p + dp) - at(s, p) + words) % words];
      SCOPED_TRACE(testing::Message() << "seeds " << ds << " apart, positions " << dp);
      EXPECT_LT(difference[0], pairs / words + 6 * std::sqrt(pairs / words));  // the same token
      expect_like(difference, std::vector<double>(words, pairs / words));
    }
}

// The same for the bits: half of the bits of neighbours are equal.
TEST(SampleBits, OfNeighboursAreIndependent) {
  for (const auto& [ds, dp, dw] :
       {std::array{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, -1, 0}, {-1, 1, 0}, {1, 0, -1}, {0, 1, -1}, {2, -2, 0}, {1, 1, 1}}) {
    double equal = 0, bits = 0;
    for (uint64_t s = 5; s < 25; ++s)
      for (uint64_t p = 5; p < 25; ++p)
        for (uint64_t w = 5; w < 45; ++w, bits += 64)
          equal += std::popcount(~(sample_bits(sample_key(s, p), w) ^ sample_bits(sample_key(s + ds, p + dp), w + dw)));
    EXPECT_NEAR(equal / bits, 0.5, 5 * 0.5 / std::sqrt(bits)) << ds << ' ' << dp << ' ' << dw;
  }
}

}  // namespace sample_test
}  // namespace based::kernels
