// Products of rows and a weight keep NaN in its row, forward and backward, for rows of any length.
#include "based/ops/linear/linear.h"
#include "based/ops/training/cross_entropy.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace row_isolation_test {

using namespace testing;

constexpr int64_t kRows = 70, kBad = 41;

class RowIsolation : public ::testing::TestWithParam<std::tuple<at::DeviceType, at::ScalarType>> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<0>(GetParam())); }
  Tensor there(const Tensor& x) const { return x.to(std::get<0>(GetParam()), std::get<1>(GetParam())); }
  // [kRows, width], finite but for one row.
  Tensor rows(int64_t width) const {
    Tensor x = random({kRows, width});
    x.select(0, kBad).fill_(NAN);
    return there(x);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, RowIsolation,
                         ::testing::Combine(::testing::Values(at::kCPU, at::kCUDA), ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& given) {
                           return std::string(std::get<1>(given.param) == at::kFloat ? "fp32" : "bf16") +
                                  (std::get<0>(given.param) == at::kCPU ? "_cpu" : "_cuda");
                         });

void expect_one_bad_row(const Tensor& y, const char* what, int64_t width) {
  const Tensor bad = at::isfinite(y.reshape({kRows, -1})).all(1).logical_not().nonzero().squeeze(1).cpu();
  EXPECT_TRUE(at::equal(bad, torch::tensor({kBad}, at::kLong))) << what << " of rows of " << width << ": not finite: " << bad;
}

TEST_P(RowIsolation, OfLinearLayersAndScores) {
  torch::manual_seed(51);
  for (const int64_t in : {16, 24, 33, 40, 63, 64, 100})
    for (const int64_t out : {24, 33, 64}) {
      const Tensor weight = there(random({out, in}));
      expect_one_bad_row(ops::linear(rows(in), weight), "linear", in);
      const Tensor x = there(random({kRows, in})).requires_grad_();
      expect_one_bad_row(torch::autograd::grad({ops::linear(x, weight)}, {x}, {rows(out)})[0], "linear's gradient", out);
      const Tensor targets = at::arange(kRows, weight.options().dtype(at::kLong)).remainder(out - 1);
      expect_one_bad_row(token_log_probabilities(rows(in), weight, targets, out - 1), "scores", in);
    }
}

}  // namespace row_isolation_test
}  // namespace based::ops
