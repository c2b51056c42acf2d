#include "based/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/core/temporary_folder.h"

namespace based {
namespace mixture_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const TokenDataset> set_of(int32_t tokens, const std::string& name = "text") {
  return std::make_shared<TokenDataset>(name, std::vector<int32_t>(static_cast<size_t>(tokens), 1), std::vector<uint64_t>{0},
                                        ByteTokenizer());
}

TEST(TokenMixture, GivesEachSetItsShareAtAnyTime) {
  for (const std::vector<double>& weights :
       {std::vector<double>{1}, {1, 1}, {0.7, 0.3}, {3, 2, 1}, {1e-3, 1, 0.1, 1e-3, 2}, {1.0 / 3, 1.0 / 3, 1.0 / 3}, {1, 1e9}}) {
    std::vector<WeightedSet> sets;
    double sum = 0;
    for (const double weight : weights) {
      sets.push_back({set_of(2), weight});
      sum += weight;
    }
    const TokenMixture mixture(sets);
    std::vector<int64_t> counts(weights.size(), 0);
    for (int64_t position = 0; position < 5000; ++position) {
      const TokenMixture::Place place = mixture.place(position);
      ASSERT_EQ(place.index, counts[place.set]) << position;
      ++counts[place.set];
      for (size_t k = 0; k < weights.size(); ++k) {
        ASSERT_LT(std::abs(static_cast<double>(counts[k]) - static_cast<double>(position + 1) * weights[k] / sum),
                  static_cast<double>(weights.size()))
            << position << " set " << k;
      }
    }
  }
}

// The places before a far position cannot be counted here; neighbours must be consecutive, and the shares right.
TEST(TokenMixture, CountsExactlyFarOut) {
  const TokenMixture mixture({{set_of(2), 0.3}, {set_of(2), 0.6}, {set_of(2), 0.1}});
  constexpr int64_t kFar = int64_t{1} << 50;
  std::vector<int64_t> next(3, -1);
  for (int64_t position = kFar; position < kFar + 100; ++position) {
    const auto [set, index] = mixture.place(position);
    EXPECT_TRUE(next[set] < 0 || index == next[set]) << position;
    next[set] = index + 1;
  }
  EXPECT_EQ(next[0] + next[1] + next[2], kFar + 100);
  EXPECT_NEAR(static_cast<double>(next[1]) / static_cast<double>(kFar), 0.6, 1e-12);
}

TEST(TokenMixture, TheHashCoversSetsAndWeights) {
  const auto a = set_of(3), b = set_of(4);
  EXPECT_EQ(TokenMixture({{a, 5}}).hash(), a->hash());
  const uint64_t hash = TokenMixture({{a, 1}, {b, 1}}).hash();
  EXPECT_NE(hash, TokenMixture({{a, 1}, {b, 2}}).hash());
  EXPECT_NE(hash, TokenMixture({{b, 1}, {a, 1}}).hash());
  EXPECT_EQ(TokenMixture({{a, 1}, {b, 1}}).tokens(), 7);
}

TEST(TokenMixture, RefusesBadWeightsAndSetsOfDifferentTokenizers) {
  EXPECT_THAT(message_of<UsageError>([] { TokenMixture({}); }), HasSubstr("at least one set"));
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THAT(message_of<UsageError>([&] {
                  TokenMixture({{set_of(2), 1}, {set_of(2, "other"), weight}});
                }),
                HasSubstr("the weight of other must be a positive number"));
  }
  class Numbers final : public Tokenizer {
   public:
    Numbers() : Tokenizer(Vocabulary{{"a", "b"}, {}, {}}) {}
    void encode_text(std::string_view, std::vector<int32_t>&) const override {}
  };
  const auto other = std::make_shared<TokenDataset>("other", std::vector<int32_t>{1, 1}, std::vector<uint64_t>{0}, Numbers());
  EXPECT_THAT(message_of<Error>([&] {
                TokenMixture({{set_of(2), 1}, {other, 1}});
              }),
              AllOf(HasSubstr("other: packed with another tokenizer"), HasSubstr("than text")));
}

}  // namespace mixture_test
}  // namespace based
