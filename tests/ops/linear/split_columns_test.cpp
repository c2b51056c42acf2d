#include "based/ops/linear/split_columns.h"

#include "based/ops/conv/short_conv.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace split_columns_test {

using namespace testing;
using std::vector;

vector<Tensor> parts(const vector<Tensor>& t) { return split_columns(t[0], {3, 1, 4}); }

TEST(SplitColumns, AreTheColumnsAndTheirGradients) {
  const Tensor x = random({5, 8});
  for (const bool with_gradient : {false, true}) {
    const auto split = split_columns(x.detach().requires_grad_(with_gradient), {3, 1, 4});
    EXPECT_TRUE(at::equal(split[0], x.narrow(1, 0, 3)) && at::equal(split[1], x.narrow(1, 3, 1)) && at::equal(split[2], x.narrow(1, 4, 4)));
    for (const Tensor& part : split) EXPECT_TRUE(part.is_alias_of(x));
  }
  EXPECT_TRUE(gradcheck(parts, {x}));
  EXPECT_TRUE(gradcheck([](const vector<Tensor>& t) { return vector<Tensor>{parts(t)[1].square()}; }, {x})) << "one part alone";
  EXPECT_EQ(error_of([] { split_columns(at::zeros({2, 3}), {2, 2}); }), "split_columns: x must have shape [any, 4], got [2, 3]");
}

TEST(SplitColumns, JoinsOnlyWhatLiesSideBySide) {
  const Tensor x = random({5, 8});
  const auto part = [&](int64_t at, int64_t width) { return x.narrow(1, at, width); };
  ASSERT_TRUE(joined_columns({part(0, 3), part(3, 1), part(4, 4)}));
  EXPECT_TRUE(at::equal(*joined_columns({part(0, 3), part(3, 1), part(4, 4)}), x));
  EXPECT_FALSE(joined_columns({part(4, 4), part(0, 4)}));
  ASSERT_TRUE(joined_columns({part(1, 2), part(3, 2)})) << "of longer rows";
  EXPECT_TRUE(at::equal(*joined_columns({part(1, 2), part(3, 2)}), part(1, 4)));
  EXPECT_FALSE(joined_columns({part(0, 4), part(4, 4).clone()}));
  EXPECT_FALSE(joined_columns({part(0, 4).clone(), x.clone().narrow(1, 4, 4)}));
}

// The gradients of a gated convolution over both halves, against narrow's, in every type that has another path.
TEST(SplitColumns, GiveShortConvsGradients) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor wide = random({40, 12}, type), weight = random({6, 3}, type), cotangent = random({40, 6}, type);
    const Tensor cu_seqlens = torch::tensor({0, 7, 7, 8, 40}, at::kLong);
    const auto gradient = [&](bool split) {
      const Function op = [&](const vector<Tensor>& t) {
        const vector<Tensor> half = split ? split_columns(t[0], {6, 6}) : vector<Tensor>{t[0].narrow(1, 0, 6), t[0].narrow(1, 6, 6)};
        return vector<Tensor>{std::get<0>(short_conv(half[0], weight, {}, half[1], true, cu_seqlens))};
      };
      return gradients(op, {wide}, {cotangent})[0];
    };
    EXPECT_TRUE(same_bits(gradient(true), gradient(false))) << type;
  }
}

}  // namespace split_columns_test
}  // namespace based::ops
