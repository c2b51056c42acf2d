#include "tests/ops/everything.h"

namespace based::ops {
namespace {

using namespace testing;

TEST(Everything, CallsEveryOperator) {
  const std::set<std::string> called = operators_called_by([] { Everything(at::kCPU).run(); });
  for (const std::string& name : operators_called_by_name()) {
    if (name == "long_conv") continue;  // reads its rows' lengths on the host, so that no graph holds it
    EXPECT_TRUE(called.contains(name)) << name << " is not tried in graphs, on two streams and on a second GPU: call it in Everything of "
                                       << "tests/ops/everything.h";
  }
}

}  // namespace
}  // namespace based::ops
