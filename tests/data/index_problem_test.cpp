#include "based/data/index_problem.h"

#include <gtest/gtest.h>

#include <set>

namespace based {
namespace index_problem_test {

TEST(Index, EveryQuestionIsAboutABitThatWasTold) {
  const IndexConfig config{.bits = 9, .told = 9, .queries = 5, .examples = 200, .seed = 3};
  const MqarData data = make_index(config);
  ASSERT_EQ(data.length, 23);
  int64_t ones = 0;
  std::set<int32_t> asked_first;
  for (int64_t example = 0; example < data.examples; ++example) {
    const int32_t *input = data.inputs.data() + example * data.length, *label = data.labels.data() + example * data.length;
    for (int32_t i = 0; i < 9; ++i) {
      EXPECT_EQ(input[2 * i], i + 1);
      EXPECT_TRUE(input[2 * i + 1] == 10 || input[2 * i + 1] == 11);
      ones += input[2 * i + 1] == 11;
    }
    for (int t = 0; t < 18; ++t) EXPECT_EQ(label[t], kNoLabel);
    std::set<int32_t> asked;
    for (int t = 18; t < 23; ++t) {
      ASSERT_TRUE(input[t] >= 1 && input[t] <= 9);
      EXPECT_EQ(label[t], input[2 * input[t] - 1]);
      EXPECT_TRUE(asked.insert(input[t]).second);
    }
    asked_first.insert(input[18]);
  }
  EXPECT_EQ(asked_first.size(), 9U);
  EXPECT_NEAR(static_cast<double>(ones) / (9 * 200), 0.5, 0.06);  // five standard deviations
}

TEST(Index, TellsARandomChoiceInOrder) {
  const MqarData data = make_index({.bits = 9, .told = 3, .queries = 3, .examples = 300, .seed = 3});
  ASSERT_EQ(data.length, 9);
  std::set<int32_t> told;
  for (int64_t example = 0; example < data.examples; ++example) {
    const int32_t *input = data.inputs.data() + example * 9, *label = data.labels.data() + example * 9;
    EXPECT_TRUE(input[0] < input[2] && input[2] < input[4] && input[4] <= 9);
    for (int t = 6; t < 9; ++t) {
      told.insert(input[t]);
      EXPECT_EQ(label[t], input[t] == input[0] ? input[1] : input[t] == input[2] ? input[3] : input[5]);
    }
  }
  EXPECT_EQ(told.size(), 9U);
}

TEST(Index, ExamplesDependOnTheSeedAndTheirNumberAlone) {
  IndexConfig config{.bits = 16, .told = 16, .queries = 16, .examples = 4, .seed = 1};
  const MqarData four = make_index(config);
  config.examples = 2;
  const MqarData two = make_index(config);
  EXPECT_TRUE(std::equal(two.inputs.begin(), two.inputs.end(), four.inputs.begin()));
  config.seed = 2;
  EXPECT_NE(make_index(config).hash(), two.hash());
}

TEST(Index, RefusesWhatCannotBe) {
  EXPECT_THROW(make_index({.bits = 0}), UsageError);
  EXPECT_THROW(make_index({.bits = 4, .told = 5, .queries = 4}), UsageError);
  EXPECT_THROW(make_index({.bits = 4, .told = 4, .queries = 5}), UsageError);
  EXPECT_THROW(make_index({.bits = 4, .told = 4, .queries = 4, .examples = -1}), UsageError);
}

TEST(Index, NoMessageAnswersMoreThanItTells) {
  EXPECT_EQ(most_recall(64, 64), 1);
  EXPECT_NEAR(most_recall(0, 64), 0.5, 1e-9);
  // H(0.11) is 0.4999…: with half as many message bits, 89 % can be answered; storing half of the bits and guessing the others gives 75 %.
  EXPECT_NEAR(most_recall(32, 64), 0.89, 1e-3);
  for (double bits = 1, before = 0.5; bits < 64; ++bits) {
    const double most = most_recall(bits, 64);
    EXPECT_GT(most, before);
    EXPECT_GE(most, 0.5 + bits / 128);  // the result of storing this many bits plainly
    before = most;
  }
}

}  // namespace index_problem_test
}  // namespace based
