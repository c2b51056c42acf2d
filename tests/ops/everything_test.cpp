#include "tests/ops/everything.h"

namespace based::ops {
namespace {

using namespace testing;

// They read their rows' lengths or slots on the host, so that no graph holds them.
const std::set<std::string> kReadRows = {"long_conv", "linear_attention", "linear_attention_prefill"};

TEST(Everything, CallsEveryOperator) {
  const std::set<std::string> called = operators_called_by([] { Everything(at::kCPU).run(); });
  for (const std::string& name : operators_called_by_name()) {
    if (kReadRows.contains(name)) continue;
    EXPECT_TRUE(called.contains(name)) << name << " is not tried in graphs, on two streams and on a second GPU: call it in Everything of "
                                       << "tests/ops/everything.h";
  }
}

}  // namespace
}  // namespace based::ops
