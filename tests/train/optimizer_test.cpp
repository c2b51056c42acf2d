#include <gtest/gtest.h>

#include <cmath>

#include "based/train/optimizer.h"

namespace based {
namespace {

struct TwoParameters : torch::nn::Module {
  Tensor matrix, vector;
  TwoParameters() {
    matrix = register_parameter("matrix", torch::tensor({{1.0, -2.0}, {0.5, 3.0}}, torch::kDouble));
    vector = register_parameter("vector", torch::tensor({1.0, 2.0}, torch::kDouble));
  }
};

TEST(AdamW, FollowsTheFormulaAndDecaysMatricesOnly) {
  TwoParameters module;
  OptimizerOptions options;
  options.weight_decay = 0.1;
  AdamW optimizer(module, options);
  Tensor p = module.matrix.detach().clone(), v = module.vector.detach().clone();
  std::vector<Tensor> m{torch::zeros_like(p), torch::zeros_like(v)}, s{torch::zeros_like(p), torch::zeros_like(v)};
  torch::manual_seed(1);
  for (int step = 1; step <= 4; ++step) {
    const Tensor g = torch::randn({2, 2}, torch::kDouble), h = torch::randn({2}, torch::kDouble);
    module.matrix.mutable_grad() = g.clone();
    module.vector.mutable_grad() = h.clone();
    optimizer.step(0.01);
    const auto update = [&](Tensor& x, const Tensor& gradient, size_t i, double decay) {
      x = x * (1 - 0.01 * decay);
      m[i] = 0.9 * m[i] + 0.1 * gradient;
      s[i] = 0.95 * s[i] + 0.05 * gradient * gradient;
      x = x - 0.01 * (m[i] / (1 - std::pow(0.9, step))) / ((s[i] / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
    };
    update(p, g, 0, 0.1);
    update(v, h, 1, 0);
    EXPECT_LT((module.matrix - p).abs().max().item<double>(), 1e-12);
    EXPECT_LT((module.vector - v).abs().max().item<double>(), 1e-12);
  }
}

// The flag takes the place of a branch that the host would have to wait for.
TEST(AdamW, AStepThatIsNotUsableChangesNothing) {
  for (const torch::Dtype dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    TwoParameters module, plain;
    module.to(dtype);
    plain.to(dtype);
    AdamW optimizer(module, {}), without(plain, {});
    const auto step = [&](TwoParameters& of, AdamW& by, double gradient, const Tensor& usable) {
      of.matrix.mutable_grad() = torch::full_like(of.matrix, gradient);
      of.vector.mutable_grad() = torch::full_like(of.vector, gradient);
      by.collect_gradients();
      by.step(by.make_rate(0.01), usable);
    };
    const Tensor yes = torch::ones({}), no = torch::zeros({});
    step(module, optimizer, 0.5, yes);
    step(module, optimizer, std::nan(""), no);
    optimizer.zero_grad();
    step(module, optimizer, -0.25, yes);
    step(plain, without, 0.5, {});
    without.zero_grad();
    step(plain, without, -0.25, {});
    for (size_t i = 0; i < optimizer.slots().size(); ++i) {
      const AdamW::Slot &one = optimizer.slots()[i], &other = without.slots()[i];
      EXPECT_TRUE(torch::equal(one.parameter, other.parameter)) << dtype;
      EXPECT_TRUE(torch::equal(one.first_moment, other.first_moment)) << dtype;
      EXPECT_TRUE(torch::equal(one.second_moment, other.second_moment)) << dtype;
      EXPECT_EQ(one.steps.item<float>(), 2) << dtype;
    }
  }
}

TEST(AdamW, ClipsTheGlobalNorm) {
  TwoParameters module;
  AdamW optimizer(module, {});
  module.matrix.mutable_grad() = torch::full({2, 2}, 3.0, torch::kDouble);
  module.vector.mutable_grad() = torch::full({2}, 4.0, torch::kDouble);
  const double norm = std::sqrt(4 * 9 + 2 * 16.0);
  EXPECT_NEAR(optimizer.clip_gradients().item<double>(), norm, 1e-12);
  EXPECT_NEAR(module.matrix.grad()[0][0].item<double>(), 3 / (norm + 1e-6), 1e-12);
}

TEST(LearningRate, RisesLinearlyThenFollowsACosine) {
  OptimizerOptions options;
  options.learning_rate = 1;
  options.min_learning_rate = 0.1;
  options.warmup = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(options, 0, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 9, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10, 100), 1);
  EXPECT_NEAR(learning_rate(options, 55, 100), 0.55, 1e-12);
  EXPECT_LT(learning_rate(options, 99, 100), 0.11);
}

}  // namespace
}  // namespace based
