#include "tests/ops/framework/everything.h"

namespace based::ops {
namespace everything_test {

using namespace testing;

// These operators read row lengths or slots on the host, so they cannot be recorded in a graph.
const std::set<std::string> kReadRows = {"long_conv", "linear_attention", "linear_attention_prefill"};

TEST(Everything, CallsEveryOperator) {
  const std::set<std::string> called = operators_called_by([] { Everything(at::kCPU).run(); });
  for (const std::string& name : operators_called_by_name()) {
    if (kReadRows.contains(name)) continue;
    EXPECT_TRUE(called.contains(name)) << name
                                       << " is not tried in graphs, on two streams and on a second GPU: call it in DefineCalls of its "
                                       << "file in tests/ops";
  }
}

}  // namespace everything_test
}  // namespace based::ops
