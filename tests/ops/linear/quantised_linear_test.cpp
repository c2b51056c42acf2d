#include "based/ops/linear/quantised_linear.h"

#include "based/ops/linear/linear.h"
#include "based/ops/pointwise/swiglu.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace quantised_linear_test {

using namespace testing;

constexpr WeightForm kForms[] = {WeightForm::int8, WeightForm::int4};

double mean_square(const Tensor& x) { return x.to(at::kDouble).square().mean().item<double>(); }
double error_of(const Tensor& weight, const QuantisedWeight& rounded) {
  return mean_square(weight - dequantised(rounded, 0, rounded.out(), at::kDouble));
}

std::vector<SchemaCase> schema_cases() {
  std::vector<SchemaCase> all;
  for (const WeightForm form : kForms)
    for (const bool gated : {false, true}) {
      const QuantisedWeight weight = quantise(random({6, 32}), form);
      all.push_back({"quantised_linear", {random({3, 32}, at::kFloat), weight.values, weight.scales, random({6}, at::kFloat), gated}});
    }
  return all;
}
const DefineSchemaCases kSchemaCases("quantised_linear", schema_cases);

QuantisedWeight on(at::Device device, const QuantisedWeight& weight) {
  return {weight.form, weight.values.to(device), weight.scales.to(device)};
}

Calls calls(at::Device device) {
  const QuantisedWeight weight = on(device, quantise(random({70, 96}, at::kDouble, 0.1), WeightForm::int8));
  const Tensor few = random({3, 96}, at::kBFloat16).to(device), many = random({70, 96}, at::kBFloat16).to(device);
  return [=]() -> std::vector<Tensor> {
    return {quantised_linear(few, weight), quantised_linear_swiglu(few, weight), quantised_linear(many, weight)};
  };
}
const DefineCalls kCalls("quantised_linear", calls);

using QuantisedLinearOnEveryDevice = OnEveryDevice;
INSTANTIATE_TEST_SUITE_P(Device, QuantisedLinearOnEveryDevice, ::testing::ValuesIn(kDevices));

// int4 runs on the CPU only.
TEST_P(QuantisedLinearOnEveryDevice, AgreesWithTheReferenceWithAndWithoutGates) {
  torch::manual_seed(4);
  for (const WeightForm form : kForms) {
    if (form == WeightForm::int4 && GetParam() != at::kCPU) continue;
    const QuantisedWeight weight = quantise(random({70, 96}, at::kDouble, 0.1), form), there = on(GetParam(), weight);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int64_t rows : {0, 1, 20, 64, 65}) {
        const Tensor x = random({rows, 96}, type), bias = random({70}, type), expected = quantised_linear_reference(x, weight, bias);
        const Tensor exact = quantised_linear_reference(x.to(at::kFloat), weight, bias.to(at::kFloat)), here = x.to(GetParam());
        const double tolerance = type == at::kFloat ? 4e-6 : 2e-2;
        EXPECT_TRUE(close(quantised_linear(here, there, bias.to(GetParam())).cpu(), expected, tolerance)) << rows;
        EXPECT_TRUE(close(quantised_linear_swiglu(here, there, bias.to(GetParam())).cpu(), swiglu_reference(exact), tolerance)) << rows;
      }
  }
}

TEST_P(QuantisedLinearOnEveryDevice, ARowsBitsDoNotDependOnTheOtherRows) {
  torch::manual_seed(5);
  const QuantisedWeight weight = on(GetParam(), quantise(random({40, 320}, at::kDouble, 0.1), WeightForm::int8));
  const Tensor x = random({kBatchInvariantRows, 320}, at::kBFloat16).to(GetParam()), all = quantised_linear(x, weight);
  for (const int64_t rows : {1, 7, 9, 33})
    EXPECT_TRUE(same_bits(quantised_linear(x.narrow(0, 3, rows), weight), all.narrow(0, 3, rows))) << rows;
}

TEST(QuantisedLinear, AgreesWithTheReferenceInDoubles) {
  torch::manual_seed(1);
  for (const WeightForm form : kForms) {
    const QuantisedWeight weight = quantise(random({70, 96}, at::kDouble, 0.1), form);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int64_t rows : {0, 1, 3, 64, 65, 200}) {  // above kBatchInvariantRows, weights are converted
        const Tensor x = random({rows, 96}, type), bias = random({70}, type);
        const double tolerance = type == at::kFloat ? 1e-6 : 1e-2;
        EXPECT_TRUE(close(quantised_linear(x, weight, bias), quantised_linear_reference(x, weight, bias), tolerance)) << rows;
        EXPECT_TRUE(close(quantised_linear(x, weight), quantised_linear_reference(x, weight), tolerance)) << rows;
      }
  }
}

TEST(QuantisedLinear, RoundsInt8ToTheNearestStepOfARow) {
  torch::manual_seed(2);
  const Tensor weight = random({9, 50});
  const QuantisedWeight rounded = quantise(weight, WeightForm::int8);
  const Tensor steps = std::get<0>(weight.abs().max(1, /*keepdim=*/true)) / 127;
  const Tensor errors = (weight - dequantised(rounded, 0, 9, at::kDouble)).abs() / steps;
  EXPECT_LE(errors.max().item<double>(), 0.5 + 1e-4);
  EXPECT_TRUE(at::equal(rounded.values.abs().amax(1), at::full({9}, 127, at::kChar)));
}

// The plain scale, which puts the largest absolute value at 8, is among the candidates up to its rounding to bf16.
TEST(QuantisedLinear, ChoosesABetterInt4ScaleThanTheLargestValue) {
  torch::manual_seed(3);
  for (const double outlier : {1.0, 4.0, 30.0}) {
    Tensor weight = random({40, 64}, at::kDouble, 0.02);
    weight.select(1, 5).mul_(outlier);
    const Tensor groups = weight.view({40, 2, 32}), step = groups.abs().amax(2, true) / 7;
    const double plain = mean_square(groups - (groups / step).round().clamp(-8, 7) * step);
    EXPECT_LT(error_of(weight, quantise(weight, WeightForm::int4)), 0.95 * plain) << outlier;
  }
}

TEST(QuantisedLinear, KeepsWhatTheFormCanExpress) {
  const Tensor whole = at::arange(-8, 8, at::kDouble).repeat({3, 2});
  EXPECT_TRUE(at::equal(dequantised(quantise(whole, WeightForm::int4), 0, 3, at::kDouble), whole));
  EXPECT_TRUE(at::equal(dequantised(quantise(whole, WeightForm::int4), 1, 1, at::kFloat), whole.narrow(0, 1, 1).to(at::kFloat)));
  for (const WeightForm form : kForms) {
    const Tensor zeros = at::zeros({2, 32});
    EXPECT_TRUE(at::equal(dequantised(quantise(zeros, form), 0, 2, at::kFloat), zeros));
  }
}

TEST(QuantisedLinear, RefusesWhatItCannotCompute) {
  const QuantisedWeight weight = quantise(at::ones({4, 32}), WeightForm::int4);
  const auto message = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] {
              quantised_linear(at::zeros({1, 32}, at::kDouble), weight);
            }),
            "quantised_linear: x must be fp32 or bf16, got Double");
  EXPECT_EQ(message([&] { quantised_linear(at::zeros({1, 31}), weight); }), "quantised_linear: x must have shape [any, 32], got [1, 31]");
  EXPECT_EQ(message([&] {
              quantise(at::zeros({1, 31}), WeightForm::int4);
            }),
            "quantised_linear: int4 needs rows of a multiple of 32 weights, got 31");
  EXPECT_NE(message([&] { quantise(at::full({1, 32}, NAN), WeightForm::int8); }).find("must be finite"), std::string::npos);
  EXPECT_NE(message([&] { quantised_linear(at::zeros({1, 32}).requires_grad_(), weight); }), "");
}

}  // namespace quantised_linear_test
}  // namespace based::ops
