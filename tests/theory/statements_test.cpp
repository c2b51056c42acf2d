#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "theory/statement.h"

namespace based::theory {
namespace statements_test {

class EveryStatement : public testing::TestWithParam<const Statement*> {};

TEST_P(EveryStatement, Holds) {
  Trial trial({}, true);
  GetParam()->verify(trial);
  EXPECT_THAT(trial.result().failures, testing::IsEmpty());
  EXPECT_GT(trial.result().inputs, 0);
}

// All inputs of statements that take less than a second. `based theory verify` tries those of the others.
TEST_P(EveryStatement, SaysHowManyInputsItTries) {
  for (const char* slow : {"mqar", "recall_values"})
    if (std::string(GetParam()->name) == slow) GTEST_SKIP() << "it takes many seconds";
  Trial trial;
  GetParam()->verify(trial);
  EXPECT_THAT(trial.result().failures, testing::IsEmpty());
  EXPECT_EQ(trial.result().inputs, GetParam()->inputs);
}

INSTANTIATE_TEST_SUITE_P(Theory, EveryStatement, testing::ValuesIn(statements()),
                         [](const auto& one) { return std::string(one.param->name); });

}  // namespace statements_test
}  // namespace based::theory
