#include "based/ops/sampling/most_likely.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace most_likely_test {

using namespace testing;

BASED_ON_EVERY_DEVICE(MostLikelyOnDevices);

// Numbers whose products are exact, so that all devices must return the same tokens.
Tensor whole(at::IntArrayRef sizes) { return torch::randint(-8, 9, sizes, at::kDouble); }

TEST_P(MostLikelyOnDevices, IsTheArgmaxOfTheLogits) {
  struct Sizes {
    int64_t rows, width, words, vocab;
  };
  for (const Sizes& s :
       {Sizes{0, 4, 7, 7}, Sizes{1, 4, 1, 1}, Sizes{33, 8, 64, 50}, Sizes{300, 16, 128, 128}, Sizes{70, 2, 300000, 299999}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      torch::manual_seed(37);
      const Tensor hidden = whole({s.rows, s.width}), weight = whole({s.words, s.width});
      const Tensor logits = hidden.matmul(weight.narrow(0, 0, s.vocab).t());
      const Tensor found = most_likely(hidden.to(GetParam(), type), weight.to(GetParam(), type), s.vocab).cpu();
      ASSERT_EQ(found.sizes(), at::IntArrayRef({s.rows}));
      if (s.rows == 0) continue;
      // If two logits are equal, either token may be returned.
      EXPECT_TRUE(at::equal(logits.gather(1, found.unsqueeze(1)).squeeze(1), std::get<0>(logits.max(1)))) << s.words << ' ' << type;
    }
}

TEST_P(MostLikelyOnDevices, NeverSaysPadding) {
  Tensor weight = at::zeros({8, 2}, at::kFloat);
  weight.narrow(0, 5, 3).fill_(100);
  weight[3].fill_(1);
  const Tensor hidden = at::ones({3, 2}, at::kFloat);
  EXPECT_TRUE(at::equal(most_likely(hidden.to(GetParam()), weight.to(GetParam()), 5).cpu(), at::full({3}, 3, at::kLong)));
}

TEST_P(MostLikelyOnDevices, SaysNothingOfARowThatIsNotFinite) {
  Tensor hidden = at::ones({4, 2}, at::kFloat), weight = at::ones({5, 2}, at::kFloat);
  weight[2].fill_(2);
  hidden[1][0] = NAN, hidden[2][1] = INFINITY;
  EXPECT_TRUE(at::equal(most_likely(hidden.to(GetParam()), weight.to(GetParam()), 5).cpu(), torch::tensor({2, -1, -1, 2}, at::kLong)));
}

TEST(MostLikely, ErrorsNameOperatorArgumentAndValue) {
  const Tensor hidden = at::zeros({4, 8});
  EXPECT_EQ(error_of([&] { most_likely(hidden, at::zeros({5, 7}), 5); }), "most_likely: weight must have shape [any, 8], got [5, 7]");
  EXPECT_EQ(error_of([&] { most_likely(hidden, at::zeros({5, 8}), 6); }), "most_likely: vocab_size must be 1..5, got 6");
}

std::vector<SchemaCase> schema_cases() { return {{"most_likely", {small_random({5, 6}), small_random({9, 6}), int64_t{7}}}}; }

const DefineSchemaCases kSchemaCases("most_likely", schema_cases);

}  // namespace most_likely_test
}  // namespace based::ops
