#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "based/train/optimizer.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace optimizer_test {

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
    const auto step = [&](TwoParameters& parameters, AdamW& by, double gradient, const Tensor& update_enabled) {
      parameters.matrix.mutable_grad() = torch::full_like(parameters.matrix, gradient);
      parameters.vector.mutable_grad() = torch::full_like(parameters.vector, gradient);
      by.collect_gradients();
      by.step(by.make_rate(0.01), update_enabled);
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

// A clipped step is one with gradients that were scaled before, to the bit; the gradients themselves stay as they are.
TEST(AdamW, ClipsTheGlobalNorm) {
  for (const torch::Dtype dtype : {torch::kDouble, torch::kFloat}) {
    TwoParameters module, plain;
    module.to(dtype), plain.to(dtype);
    AdamW optimizer(module, {}), without(plain, {});
    const double norm = std::sqrt(4 * 9 + 2 * 16.0);
    for (const bool clip : {true, false, true}) {  // a factor belongs to the next step alone
      module.matrix.mutable_grad() = torch::full_like(module.matrix, 3.0);
      module.vector.mutable_grad() = torch::full_like(module.vector, 4.0);
      Tensor scale = torch::ones({}, dtype);
      if (clip) {
        const Tensor found = optimizer.clip_gradients(torch::zeros({})).loss_and_norm[1];
        EXPECT_NEAR(found.item<double>(), norm, dtype == torch::kDouble ? 1e-12 : 1e-6);
        scale = (1 / (found + 1e-6)).to(dtype);
      }
      optimizer.step(0.01);
      EXPECT_EQ(module.matrix.grad()[0][0].item<double>(), 3);
      plain.matrix.mutable_grad() = torch::full_like(plain.matrix, 3.0) * scale;
      plain.vector.mutable_grad() = torch::full_like(plain.vector, 4.0) * scale;
      without.step(0.01);
      EXPECT_TRUE(torch::equal(module.matrix, plain.matrix)) << dtype;
      EXPECT_TRUE(torch::equal(module.vector, plain.vector)) << dtype;
      EXPECT_TRUE(torch::equal(optimizer.slots()[0].second_moment, without.slots()[0].second_moment)) << dtype;
    }
  }
}

// Gradients of 16 bits: one backward's as they are, more added up in fp32, where the second does not vanish beside the first.
TEST(AdamW, AddsUpMicroBatchesInFp32) {
  const Tensor big = torch::tensor({256.0, 1.0}), small = torch::tensor({0.75, 0.001});
  for (const int64_t batches : {1, 2, 3}) {
    TwoParameters half, full;
    half.to(torch::kBFloat16), full.to(torch::kFloat);
    AdamW optimizer(half, {}), wide(full, {});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad(), wide.zero_grad();
      Tensor sum = torch::zeros({2});
      for (int64_t batch = 0; batch < batches; ++batch) {
        const Tensor gradient = (batch == 0 ? big : small).to(torch::kBFloat16);
        half.vector.mutable_grad() = gradient.clone();
        half.matrix.mutable_grad() = torch::zeros({2, 2}, torch::kBFloat16);
        optimizer.collect_gradients();
        EXPECT_FALSE(half.vector.grad().defined());
        sum += gradient;
      }
      full.vector.mutable_grad() = sum;
      full.matrix.mutable_grad() = torch::zeros({2, 2});
      const Tensor loss = torch::zeros({});
      EXPECT_TRUE(torch::equal(optimizer.clip_gradients(loss).loss_and_norm, wide.clip_gradients(loss).loss_and_norm)) << batches;
      optimizer.step(0.01), wide.step(0.01);
      for (size_t i = 0; i < 2; ++i) {
        const AdamW::Slot &one = optimizer.slots()[i], &other = wide.slots()[i];
        EXPECT_TRUE(torch::equal(one.master, other.master)) << batches;
        EXPECT_TRUE(torch::equal(one.parameter, one.master.to(torch::kBFloat16))) << batches;
        EXPECT_TRUE(torch::equal(one.second_moment, other.second_moment)) << batches;
      }
    }
    optimizer.zero_grad();
    EXPECT_EQ(optimizer.clip_gradients(torch::zeros({})).loss_and_norm[1].item<double>(), 0) << "nothing is left";
  }
}

// A state that does not fit is refused by the parameter's name. One of a 16-bit training gives an fp32 parameter its master.
TEST(AdamW, LoadsStatesThatFitTheModule) {
  TwoParameters half, full;
  half.to(torch::kBFloat16), full.to(torch::kFloat);
  AdamW optimizer(half, {}), wide(full, {});
  half.matrix.mutable_grad() = torch::full_like(half.matrix, 0.5);
  optimizer.collect_gradients();
  optimizer.step(0.001);
  const std::vector<SavedSlot> state = optimizer.gather_state();
  EXPECT_FALSE(state[0].first_moment.is_alias_of(optimizer.slots()[0].first_moment));
  wide.load_state(state);
  EXPECT_TRUE(torch::equal(full.matrix, optimizer.slots()[0].master));
  EXPECT_FALSE(torch::equal(full.matrix, half.matrix.to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(wide.slots()[0].second_moment, state[0].second_moment));
  EXPECT_EQ(wide.slots()[0].steps.item<float>(), 1);
  EXPECT_EQ(wide.slots()[1].steps.item<float>(), 0);  // had no gradient
  const auto refusal = [&](const std::function<void(std::vector<SavedSlot>&)>& change) -> std::string {
    std::vector<SavedSlot> changed = state;
    change(changed);
    try {
      optimizer.load_state(changed);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& slots) { slots[0].master.reset(); }), testing::HasSubstr("no master.matrix"));
  EXPECT_THAT(refusal([](auto& slots) { slots[1].first_moment = torch::zeros({3}); }), testing::HasSubstr("first_moment.vector"));
  EXPECT_THAT(refusal([](auto& slots) { slots[1].second_moment = slots[1].second_moment.to(torch::kDouble); }),
              testing::HasSubstr("second_moment.vector"));
  EXPECT_THAT(refusal([](auto& slots) { std::swap(slots[0], slots[1]); }), testing::HasSubstr("'matrix'"));
  EXPECT_THAT(refusal([](auto& slots) { slots.pop_back(); }), testing::HasSubstr("1 parameters"));
}

// Values of every numeric option that are NaN, infinite or out of range.
TEST(OptimizerOptions, EachHasARange) {
  const double none = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const std::map<std::string, std::vector<double>> wrong{{"learning_rate", {0, -1e-3, 1e300, 1e7}},
                                                         {"min_learning_rate", {-1e-9, 2e-3, 1e300}},
                                                         {"warmup", {-0.1, 1.1}},
                                                         {"beta1", {-0.1, 1}},
                                                         {"beta2", {-0.1, 1}},
                                                         {"eps", {0, -1e-8, 1e-300, 2}},
                                                         {"weight_decay", {-0.1, 1e4, 1e300}},
                                                         {"clip", {-1}}};
  size_t checked_values = 0;
  OptimizerOptions().visit([&]<class T>(const char* name, T&, const char*) {
    if constexpr (std::is_same_v<T, double>) {
      ASSERT_TRUE(wrong.contains(name)) << name;
      std::vector<double> values = wrong.at(name);
      values.insert(values.end(), {none, infinite, -infinite});
      for (const double value : values) {
        OptimizerOptions options;
        options.visit([&]<class U>(const char* field, U& out, const char*) {
          if constexpr (std::is_same_v<U, double>)
            if (std::string(field) == name) out = value;
        });
        EXPECT_THAT(message_of<UsageError>([&] { check_optimizer_options(options); }), ::testing::HasSubstr(name))
            << name << " = " << value;
        ++checked_values;
      }
    }
  });
  EXPECT_EQ(checked_values, 45u);
  check_optimizer_options(OptimizerOptions());
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

// As torch.optim.lr_scheduler.CosineAnnealingLR reckons each rate from the one before, when it is stepped once an epoch.
TEST(LearningRate, MovesByEpochAsPyTorchs) {
  OptimizerOptions options;
  options.learning_rate = 0.03, options.min_learning_rate = 0.001, options.warmup = 0, options.schedule = "epoch";
  check_optimizer_options(options);
  constexpr int64_t epochs = 32, epoch_steps = 7;
  double rate = 0.03;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto angle = [&](int64_t at) { return 1 + std::cos(M_PI * static_cast<double>(at) / epochs); };
    if (epoch > 0) rate = 0.001 + angle(epoch) / angle(epoch - 1) * (rate - 0.001);
    for (const int64_t step : {int64_t{0}, epoch_steps - 1}) {
      EXPECT_NEAR(learning_rate(options, epoch * epoch_steps + step, epochs * epoch_steps, epoch_steps), rate, 1e-15) << epoch;
    }
  }
  EXPECT_DOUBLE_EQ(learning_rate(options, 10, 12, 5), 0.001 + 0.029 / 4) << "two of three epochs, of which the last is short";
  EXPECT_THAT(message_of<UsageError>([&] { learning_rate(options, 0, 10); }), ::testing::HasSubstr("needs epochs"));
  options.warmup = 0.1;
  EXPECT_THAT(message_of<UsageError>([&] { check_optimizer_options(options); }), ::testing::HasSubstr("warmup must be 0"));
  options.warmup = 0, options.schedule = "month";
  EXPECT_THAT(message_of<UsageError>([&] { check_optimizer_options(options); }), ::testing::HasSubstr("schedule must be step or epoch"));
}

// A group's parameters are trained as by an optimizer of their own.
TEST(AdamW, GroupsHaveTheirOwnRateAndDecay) {
  OptimizerOptions options, matrix_options, vector_options;
  options.groups = {{"vec*", 0.5, 0.3}, {"*", 2, -1}};
  matrix_options.learning_rate = 2e-3;
  vector_options.weight_decay = 0.3, vector_options.decay_all = true;
  TwoParameters grouped, matrix, vector;
  AdamW by_groups(grouped, options), by_matrix(matrix, matrix_options), by_vector(vector, vector_options);
  for (int step = 0; step < 3; ++step) {
    for (TwoParameters* module : {&grouped, &matrix, &vector}) {
      module->matrix.mutable_grad() = torch::full_like(module->matrix, 0.5 + step);
      module->vector.mutable_grad() = torch::full_like(module->vector, -0.25 * step);
    }
    by_groups.step(1e-3);
    by_matrix.step(2e-3);
    by_vector.step(5e-4);
    EXPECT_TRUE(torch::equal(grouped.matrix, matrix.matrix));
    EXPECT_TRUE(torch::equal(grouped.vector, vector.vector));
  }
}

TEST(AdamW, AGroupWithoutParametersIsRefused) {
  TwoParameters module;
  OptimizerOptions options;
  for (const std::vector<OptimizerGroup>& groups :
       {std::vector<OptimizerGroup>{{"matrx"}}, {{"*"}, {"matrx"}}, {{"*"}, {"vector"}, {"matrx"}}}) {
    options.groups = groups;
    const std::string wanted = groups.size() == 3 ? "'vector'" : "'matrx'";
    EXPECT_THAT(
        message_of<UsageError>([&] { AdamW(module, options); }),
        ::testing::AllOf(::testing::HasSubstr("the pattern " + wanted + " matches no parameter"), ::testing::HasSubstr("'vector'")));
  }
}

TEST(OptimizerOptions, GroupsHaveRanges) {
  const auto refused = [](const OptimizerGroup& group) {
    OptimizerOptions options;
    options.groups = {group};
    return message_of<UsageError>([&] { check_optimizer_options(options); });
  };
  const double none = std::nan("");
  for (const double scale : {-1.0, 1e300, none})
    EXPECT_THAT(refused({"a.*", scale}), ::testing::HasSubstr("pattern 'a.*': learning_rate_scale"));
  for (const double decay : {-0.5, 1e300, none})
    EXPECT_THAT(refused({"a.*", 1, decay}), ::testing::HasSubstr("pattern 'a.*': weight_decay"));
  EXPECT_THAT(refused({"", 1}), ::testing::HasSubstr("pattern must name parameters"));
}

TEST(OptimizerOptions, GroupsAreTablesOfAConfig) {
  const auto options = read_config<OptimizerOptions>(Config::parse_toml(
      "[[groups]]\npattern = \"layers.*.norm?.*\"\nweight_decay = 0.0\n[[groups]]\npattern = \"embedding\"\nlearning_rate_scale = 0.1\n",
      "test"));
  ASSERT_EQ(options.groups.size(), 2U);
  EXPECT_EQ(options.groups[0].pattern, "layers.*.norm?.*");
  EXPECT_EQ(options.groups[0].weight_decay, 0);
  EXPECT_EQ(options.groups[1].learning_rate_scale, 0.1);
  EXPECT_EQ(options.groups[1].weight_decay, -1);
}

}  // namespace optimizer_test
}  // namespace based
