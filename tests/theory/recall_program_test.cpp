#include "theory/recall_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/error.h"
#include "theory/integers.h"
#include "theory/statements/recall_inputs.h"

namespace based::theory {
namespace recall_program_test {

bool answers_wrongly(const RecallSizes& sizes, const Program& program) {
  Trial trial;
  RecallCheck check(trial, sizes, program);
  for_all_tokens(sizes, [&](const Tokens& tokens) {
    if (tokens.one_match()) check.add(tokens);
  });
  check.finish();
  return !trial.result().holds();
}

// The check detects errors: each layer is left out once. Exceptions are layers that only clear cells that are not read.
TEST(RecallProgram, NeedsItsLayers) {
  const RecallSizes sizes{2, 2};
  const Program whole = recall_program(sizes);
  EXPECT_FALSE(answers_wrongly(sizes, whole));
  std::vector<std::string> idle;
  for (size_t k = 0; k < whole.layers.size(); ++k) {
    Program program = whole;
    program.layers.erase(program.layers.begin() + static_cast<int64_t>(k));
    if (!answers_wrongly(sizes, program)) idle.push_back(whole.layers[k].what);
  }
  EXPECT_THAT(idle, testing::ElementsAre("2.2: keep some cells", "8.2: select 2 rows from 0 on"));
}

TEST(RecallProgram, CountsMoreLayersOnlyWithBits) {
  for (const int64_t n : {8, 15, 16, 31, 32, 63}) {
    const RecallSizes sizes{n, n};
    EXPECT_EQ(recall_program(sizes).depth(), 80 + 3 * ceil_log2(sizes.key_bits()) + ceil_log2(sizes.value_bits())) << n;
  }
}

TEST(RecallProgram, SaysWhichSizesItTakes) {
  for (const RecallSizes& sizes : {RecallSizes{0, 4}, RecallSizes{kMaxRecall + 1, 4}, RecallSizes{4, 0}, RecallSizes{4, kMaxRecall + 1}}) {
    try {
      recall_program(sizes);
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("1 … 256"));
    }
  }
}

TEST(RecallInputs, AskOnlyWhatHasOneAnswer) {
  Random random(3);
  for (const auto& [length, tokens] : {std::pair<int64_t, int64_t>{1, 2}, {9, 2}, {5, 8}, {30, 7}}) {
    int64_t answered = 0, none = 0;
    for (int64_t k = 0; k < 400; ++k) {
      const Tokens drawn = draw_tokens(random, {length, tokens}, k % kTokenKinds);
      ASSERT_TRUE(drawn.one_match());
      for (const int64_t answer : drawn.answers()) ++(answer < 0 ? none : answered);
    }
    EXPECT_GT(answered, 0);
    EXPECT_GT(none, 0);
  }
}

TEST(RecallInputs, AllAreAll) {
  int64_t count = 0;
  for_all_tokens({2, 3}, [&](const Tokens&) { ++count; });
  EXPECT_EQ(count, 729);
}

}  // namespace recall_program_test
}  // namespace based::theory
