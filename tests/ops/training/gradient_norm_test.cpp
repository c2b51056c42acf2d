#include "based/ops/training/gradient_norm.h"

#include <cmath>

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace gradient_norm_test {

using namespace testing;

// More tensors than a launch takes, of no, few and many elements, some at an odd address, one transposed and one with gaps.
std::vector<Tensor> make_gradients(const std::vector<at::ScalarType>& types, at::DeviceType device) {
  std::vector<int64_t> counts{4096, 0, 1, 4097, 30001, 12};
  for (int64_t i = 0; i < 600; ++i) counts.push_back(i % 17);
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t odd = i % 3 == 2 ? 1 : 0;
    gradients.push_back(random({counts[i] + odd}, types[i % types.size()], 0.25).to(device).narrow(0, odd, counts[i]));
  }
  gradients.push_back(random({40, 30}, types[0]).to(device).t());
  gradients.push_back(random({50, 30}, types[0]).to(device).narrow(1, 3, 20));
  return gradients;
}

double norm_in_double(const std::vector<Tensor>& gradients) {
  double squares = 0;
  for (const Tensor& gradient : gradients) squares += gradient.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

std::vector<double> numbers_of(const GradientNorm& found) {
  return {found.loss_and_norm[0].item<double>(), found.loss_and_norm[1].item<double>(), found.update_enabled.item<double>(),
          found.scale.item<double>()};
}

BASED_ON_EVERY_DEVICE(GradientNorms);

TEST_P(GradientNorms, AreThoseInDouble) {
  torch::manual_seed(71);
  const Tensor on = at::ones({}, at::dtype(at::kFloat).device(GetParam())), loss = on * 0.75;
  for (const auto& types : std::vector<std::vector<at::ScalarType>>{
           {at::kFloat}, {at::kBFloat16}, {at::kBFloat16, at::kFloat, at::kFloat}, {at::kHalf, at::kFloat}, {at::kDouble}}) {
    const std::vector<Tensor> gradients = make_gradients(types, GetParam());
    const double norm = norm_in_double(gradients);
    for (const double clip : {0.0, 0.5 * norm, 2 * norm}) {
      const GradientNorm found = gradient_norm({gradients, loss, {}, clip});
      const std::vector<double> n = numbers_of(found);
      EXPECT_EQ(n[0], 0.75);
      EXPECT_NEAR(n[1], norm, 2e-6 * norm) << types[0];
      EXPECT_EQ(n[2], 1);
      EXPECT_NEAR(n[3], clip == 0.5 * norm ? clip / (norm + 1e-6) : 1, 2e-6) << types[0] << ' ' << clip;
      EXPECT_EQ(found.scale.scalar_type(), types[0] == at::kDouble ? at::kDouble : at::kFloat);
      const GradientNorm again = gradient_norm({gradients, loss.to(at::kDouble), on, clip});
      EXPECT_TRUE(same_bits(again.loss_and_norm, found.loss_and_norm));
      EXPECT_TRUE(same_bits(again.update_enabled, found.update_enabled) && same_bits(again.scale, found.scale));
    }
  }
}

TEST_P(GradientNorms, AreUsableWhereBothFiguresAreFiniteAndTheStepIsEnabled) {
  const auto options = at::dtype(at::kFloat).device(GetParam());
  const Tensor good = at::full({}, 2, options), on = at::ones({}, options), off = at::zeros({}, options);
  const std::vector<Tensor> fine{at::full({5}, 3, options), at::full({4097}, 1, options)};
  const auto update_enabled = [](const std::vector<Tensor>& gradients, const Tensor& loss, const std::optional<Tensor>& enabled) {
    return gradient_norm({gradients, loss, enabled, 1}).update_enabled.item<double>();
  };
  EXPECT_EQ(update_enabled(fine, good, {}), 1);
  EXPECT_EQ(update_enabled(fine, good, on), 1);
  EXPECT_EQ(update_enabled(fine, good, off), 0);
  EXPECT_EQ(update_enabled({}, good, on), 1);
  EXPECT_EQ(gradient_norm({{}, good, on, 1}).loss_and_norm[1].item<double>(), 0);
  for (const double wrong : {double{NAN}, double{INFINITY}}) {
    EXPECT_EQ(update_enabled(fine, at::full({}, wrong, options), on), 0);
    EXPECT_EQ(update_enabled(fine, at::full({}, wrong, options.dtype(at::kDouble)), {}), 0);
    std::vector<Tensor> bad = fine;
    bad[1] = fine[1].clone();
    bad[1][4096] = wrong;
    EXPECT_EQ(update_enabled(bad, good, on), 0);
  }
}

// On the CPU the bits are those of the operations that runs so far were trained with.
TEST(GradientNorm, OnTheCpuIsTheNormOfATensorOfNorms) {
  torch::manual_seed(72);
  const std::vector<Tensor> gradients{random({70, 30}, at::kFloat), random({4099}, at::kBFloat16), random({7}, at::kFloat)};
  const std::vector<Tensor> wide = at::_foreach_norm({gradients[0], gradients[2]}, 2),
                            narrow = at::_foreach_norm({gradients[1]}, 2, at::kFloat);
  const Tensor norm = at::stack({wide[0], narrow[0], wide[1]}).norm().to(at::kDouble);
  const GradientNorm found = gradient_norm({gradients, at::ones({}), {}, 1});
  EXPECT_TRUE(same_bits(found.loss_and_norm[1], norm));
  EXPECT_TRUE(same_bits(found.scale, (1 / (norm + 1e-6)).to(at::kFloat)));
}

TEST(GradientNorm, ErrorsNameTheArgument) {
  const Tensor loss = at::ones({});
  const auto error = [](const GradientNormOf& in) { return error_of([&] { gradient_norm(in); }); };
  EXPECT_EQ(error({{at::ones({2}, at::kInt)}, loss, {}, 1}), "gradient_norm: gradients[0] must be floating, got Int");
  EXPECT_EQ(error({{}, at::ones({1}), {}, 1}), "gradient_norm: loss must have shape [], got [1]");
  EXPECT_EQ(error({{}, loss.to(at::kBFloat16), {}, 1}), "gradient_norm: loss must be Float or Double, got BFloat16");
  EXPECT_EQ(error({{}, loss, at::ones({}, at::kDouble), 1}), "gradient_norm: enabled must be Float, got Double");
  EXPECT_EQ(error({{}, loss, {}, -1}), "gradient_norm: clip must be at least 0, got -1");
  EXPECT_EQ(error({{at::ones({2}).requires_grad_()}, loss, {}, 1}), "gradient_norm: has no gradient; turn gradients off around it");
}

std::vector<SchemaCase> schema_cases() {
  return {{"gradient_norm", {std::vector<Tensor>{at::ones({2, 3}), at::ones({4}, at::kBFloat16)}, at::ones({}), at::ones({}), 1.0}}};
}

const DefineSchemaCases kSchemaCases("gradient_norm", schema_cases);

}  // namespace gradient_norm_test
}  // namespace based::ops
