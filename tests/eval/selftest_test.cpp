#include "based/eval/selftest.h"

#include "tests/ops/framework/testing.h"

namespace based {
namespace selftest_test {

TEST(SelfTest, ChecksEveryOperatorAndPasses) {
  const std::set<std::string> called = ops::testing::operators_called_by([] {
    run_selftest(torch::kCPU, [](const SelfTestResult& result) {
      EXPECT_TRUE(result.pass) << result.name << ", " << result.variant << ": " << result.error << " " << result.message;
    });
  });
  for (const std::string& name : ops::testing::operators_called_by_name())
    EXPECT_TRUE(called.contains(name)) << name
                                       << " is not checked on a user's machine: give it a line in based/eval/selftest_operators.cpp";
}

}  // namespace selftest_test
}  // namespace based
