#include "based/ops/linear/linear.h"

#include "based/ops/linear/gated_mlp.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace linear_test {

using namespace testing;
using std::vector;

BASED_ON_EVERY_DEVICE(LinearOnDevices);

using LinearOp = decltype(&linear);

// With a width that is no multiple of 16 bytes among them.
void expect_linear_equals(at::DeviceType device, LinearOp op, LinearOp reference, bool with_bias, int64_t rows, int64_t out) {
  const auto with = [with_bias](LinearOp linear_op) {
    return Function(
        [=](const vector<Tensor>& t) { return vector<Tensor>{linear_op(t[0], t[1], with_bias ? std::optional(t[2]) : std::nullopt)}; });
  };
  const int64_t width = rows == 2 ? 33 : 1040;
  const vector<Tensor> in{random({rows, width}), random({out, width}), random({out})};
  expect_like_reference(device, with(op), with(reference), in);
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const vector<Tensor> typed{in[0].to(type), in[1].to(type), in[2].to(type)};
    EXPECT_TRUE(close(on_device(with(op), device)(typed)[0], with(reference)(in)[0], type == at::kBFloat16 ? 2e-2 : 1e-4)) << rows << type;
  }
}

TEST_P(LinearOnDevices, EqualsTheReference) {
  for (const int64_t rows : {0, 1, 2, 3, 4, 5, 16, 63, 64, 65, 128, 200})
    for (const bool with_bias : {false, true}) {
      expect_linear_equals(GetParam(), linear, linear_reference, with_bias, rows, rows % 2 == 0 ? 84 : 17);
      for (const int64_t out : {84, 272})
        if (rows < 6 || out == 272) expect_linear_equals(GetParam(), linear_swiglu, linear_swiglu_reference, with_bias, rows, out);
    }
  expect_linear_equals(GetParam(), linear_swiglu, linear_swiglu_reference, true, 1, 20000);  // more outputs than warps at once
  EXPECT_TRUE(gradcheck([](const vector<Tensor>& t) { return vector<Tensor>{ops::linear(t[0], t[1], t[2])}; },
                        {random({3, 4}), random({2, 4}), random({2})}));
}

TEST_P(LinearOnDevices, GatedMlpEqualsTheReference) {
  const auto with = [](decltype(&gated_mlp) op) {
    return Function([op](const vector<Tensor>& t) { return vector<Tensor>{op(t[0], t[1], t[2])}; });
  };
  struct Sizes {
    int64_t rows, in, width, out;
  };
  for (const Sizes& s : {Sizes{0, 8, 256, 8}, Sizes{1, 24, 128, 16}, Sizes{129, 64, 256, 40}, Sizes{300, 200, 512, 72},
                         Sizes{700, 72, 768, 8}, Sizes{140, 33, 256, 9}, Sizes{140, 32, 100, 8}})
    expect_like_reference(GetParam(), with(gated_mlp), with(gated_mlp_reference),
                          {random({s.rows, s.in}), random({2 * s.width, s.in}) / 4, random({s.out, s.width}) / 4}, 1e-2);
  EXPECT_TRUE(gradcheck(with(gated_mlp), {random({3, 4}), random({6, 4}), random({2, 3})}));
}

TEST(GatedMlp, NamesWhatDoesNotFit) {
  const Tensor x = at::zeros({3, 4}), in = at::zeros({6, 4});
  EXPECT_EQ(error_of([&] {
              gated_mlp(x, at::zeros({5, 4}), at::zeros({2, 2}));
            }),
            "gated_mlp: weight_in must have an even number of rows, got 5");
  EXPECT_EQ(error_of([&] { gated_mlp(x, in, at::zeros({2, 4})); }), "gated_mlp: weight_out must have shape [any, 3], got [2, 4]");
}

TEST(Linear, ARowDependsOnNoOtherRow) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(23);
    const Tensor wide = random({kBatchInvariantRows, 90}, type), weight = random({50, 75}, type), bias = random({50}, type);
    const Tensor x = wide.narrow(1, 3, 75), y = ops::linear(x, weight, bias);
    for (int64_t row = 0; row < x.size(0); ++row)
      EXPECT_TRUE(same_bits(ops::linear(x.narrow(0, row, 1).clone(), weight, bias), y.narrow(0, row, 1))) << type << ", row " << row;
    for (const int64_t rows : {2, 3, 7, 16, 33})
      EXPECT_TRUE(same_bits(ops::linear(x.narrow(0, 5, rows), weight, bias), y.narrow(0, 5, rows)));
  }
}

// More rows than a step has, some of them not where a library likes them to be.
TEST_P(LinearOnDevices, OfManyRowsTakesColumnSlices) {
  const at::NoGradGuard no_grad;
  const Tensor wide = random({300, 99}), weights = random({44, 99}), biases = random({47});
  for (const int64_t first : {0, 3, 8, 19}) {
    const vector<Tensor> in{wide.narrow(1, first, 80), weights.narrow(1, first, 80), biases.narrow(0, first / 8, 44)};
    vector<Tensor> there;
    for (const Tensor& whole : {wide, weights, biases}) there.push_back(whole.to(GetParam(), at::kBFloat16));
    const Tensor y = ops::linear(there[0].narrow(1, first, 80), there[1].narrow(1, first, 80), there[2].narrow(0, first / 8, 44));
    EXPECT_TRUE(close(y.to(at::kCPU, at::kDouble), ops::linear_reference(in[0], in[1], in[2]), 1e-2)) << first;
  }
}

// A GPU launches the kernel that was chosen for 1,024 rows for each of these numbers of rows.
TEST_P(LinearOnDevices, TakesTheKernelOfMoreRows) {
  const at::NoGradGuard no_grad;
  const Tensor x = random({1024, 64}), weight = random({640, 64}), weight_there = weight.to(GetParam(), at::kBFloat16);
  const Tensor there = x.to(GetParam(), at::kBFloat16), expected = ops::linear_reference(x, weight, {});
  for (const int64_t rows : {1024, 961, 1000, 1023})
    EXPECT_TRUE(close(ops::linear(there.narrow(0, 0, rows), weight_there, {}).to(at::kCPU, at::kDouble), expected.narrow(0, 0, rows), 1e-2))
        << rows;
}

// Enough tiles for a library's product on a GPU, whose kernel is chosen once for products of the same shape, alignment and bias.
TEST_P(LinearOnDevices, HasTheSameBitsWhenRepeated) {
  const at::NoGradGuard no_grad;
  const Tensor x = random({4097, 40}), weight = random({1280, 32}), bias = random({1280});
  const Tensor there = x.to(GetParam(), at::kBFloat16), weight_there = weight.to(GetParam(), at::kBFloat16);
  for (const bool with_bias : {false, true}) {
    const OptionalTensor no_bias, bias_there = with_bias ? OptionalTensor(bias.to(GetParam(), at::kBFloat16)) : no_bias;
    vector<Tensor> first;
    for (int round = 0; round < 2; ++round)
      for (const int64_t begin : {0, 1, 8}) {
        const Tensor y = ops::linear(there.narrow(1, begin, 32), weight_there, bias_there);
        if (round == 1) {
          EXPECT_TRUE(same_bits(y, first[static_cast<size_t>(begin == 8 ? 2 : begin)])) << begin;
          continue;
        }
        first.push_back(y);
        const Tensor expected = ops::linear_reference(x.narrow(1, begin, 32), weight, with_bias ? OptionalTensor(bias) : no_bias);
        EXPECT_TRUE(close(y.to(at::kCPU, at::kDouble), expected, 1e-2)) << begin;
      }
  }
}

// At the same number of rows.
TEST_P(LinearOnDevices, RowsDependOnNoOtherRow) {
  const at::NoGradGuard no_grad;
  const Tensor weight = random({272, 200}, at::kBFloat16).to(GetParam());
  for (const LinearOp op : {linear, linear_swiglu}) {
    for (const int64_t rows : {1, 4, 7, 16, 40, 64, 128}) {
      const Tensor x = random({rows, 200}, at::kBFloat16).to(GetParam()), y = op(x, weight, {});
      const Tensor others = x.flip({0}) * 3;
      others.select(0, rows / 2).copy_(x.select(0, rows / 2));
      EXPECT_TRUE(same_bits(op(others, weight, {}).select(0, rows / 2), y.select(0, rows / 2))) << rows << " rows";
    }
  }
}

}  // namespace linear_test
}  // namespace based::ops
