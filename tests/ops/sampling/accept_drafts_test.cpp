#include "based/ops/sampling/accept_drafts.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace accept_drafts_test {

using namespace testing;

BASED_ON_EVERY_DEVICE(AcceptDraftsOnDevices);

// Values of several types and of sizes that no vector divides, more of them than a launch takes.
TEST_P(AcceptDraftsOnDevices, TakeTheRowAfterTheLastRightDraft) {
  torch::manual_seed(5);
  const at::Device device = GetParam();
  const Tensor tokens = torch::tensor({4, 5, 6, 7}).to(device);
  const std::vector<at::ScalarType> types{at::kFloat, at::kBFloat16, at::kLong, at::kByte};
  for (int64_t accepted = 0; accepted <= 3; ++accepted) {
    Tensor drafts = torch::tensor({4, 5, 6}).to(device);
    if (accepted < 3) drafts[accepted] = 0;
    std::vector<AcceptedValue> values;
    std::vector<Tensor> expected;
    for (int64_t i = 0; i < 300; ++i) {
      const int64_t size = i == 7 ? 100'003 : i * 37 % 1024, rows = i % 2 == 0 ? 4 : 3;
      const auto random = [&](at::IntArrayRef sizes) { return at::randint(250, sizes).to(device, types[static_cast<size_t>(i) % 4]); };
      values.push_back({random({size}), random({rows, size})});
      expected.push_back(accepted < rows ? values.back().rows[accepted].clone() : values.back().to.clone());
    }
    accept_drafts_(tokens, drafts, values);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(values[i].to, expected[i])) << i << " after " << accepted;
  }
}

TEST_P(AcceptDraftsOnDevices, NameTheWrongArgument) {
  const auto ids = at::dtype(at::kLong).device(GetParam());
  const Tensor tokens = at::zeros({2}, ids), drafts = at::zeros({1}, ids), row = at::zeros({3}, ids), rows = at::zeros({2, 3}, ids);
  EXPECT_EQ(error_of([&] { accept_drafts_(tokens.to(at::kInt), drafts, {}); }), "accept_drafts_: tokens must be Long, got Int");
  EXPECT_EQ(error_of([&] { accept_drafts_(tokens, at::zeros({3}, ids), {}); }),
            "accept_drafts_: tokens must be contiguous [drafts or more], got [2]");
  EXPECT_EQ(error_of([&] {
              accept_drafts_(tokens, at::zeros({1, 1}, ids), {});
            }),
            "accept_drafts_: drafts must be contiguous [drafts], got [1, 1]");
  EXPECT_EQ(error_of([&] {
              accept_drafts_(tokens, drafts, {{row, rows.to(at::kFloat)}});
            }),
            "accept_drafts_: rows must be Long, got Float");
  EXPECT_EQ(error_of([&] {
              accept_drafts_(tokens, drafts, {{row, at::zeros({2, 4}, ids)}});
            }),
            "accept_drafts_: rows of value 0 must be [n, …] like [3], got [2, 4]");
  EXPECT_EQ(error_of([&] {
              accept_drafts_(tokens, drafts, {{row, at::zeros({3, 2}, ids).t()}});
            }),
            "accept_drafts_: value 0 must be contiguous");
}

}  // namespace accept_drafts_test
}  // namespace based::ops
