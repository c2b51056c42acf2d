#include "based/ops/training/adamw.h"

#include <cmath>

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace adamw_test {

using namespace testing;

struct Types {
  at::ScalarType master, rounded, gradient;
};
const std::vector<Types> kTypes{{at::kFloat, at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16, at::kFloat},
                                {at::kFloat, at::kFloat, at::kFloat},       {at::kFloat, at::kHalf, at::kHalf},
                                {at::kDouble, at::kDouble, at::kDouble},    {at::kFloat, at::kFloat, at::kBFloat16}};

// More tensors than a launch takes, of no, few and many elements, and some that begin at an odd address.
std::vector<std::vector<int64_t>> many_shapes() {
  std::vector<std::vector<int64_t>> shapes{{}, {0}, {1}, {3, 5}, {8192}, {8193}, {3, 8192}, {20001}, {2, 0, 3}};
  for (int64_t i = 0; i < 420; ++i) shapes.push_back({i % 7 + 1, i % 11 + 1});
  return shapes;
}

AdamwStep make_step(const std::vector<std::vector<int64_t>>& shapes, const Types& types, at::DeviceType device) {
  AdamwStep step;
  const auto draw = [&](const std::vector<int64_t>& shape, at::ScalarType type, double scale) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const int64_t odd = static_cast<int64_t>(step.masters.size()) % 3 == 2 ? 1 : 0;
    return random({count + odd}, type, scale).to(device).narrow(0, odd, count).view(shape);
  };
  for (const auto& shape : shapes) {
    const Tensor master = draw(shape, types.master, 1);
    step.gradients.push_back(draw(shape, types.gradient, 0.3));
    step.rounded.push_back(types.rounded == types.master ? master : master.to(types.rounded));
    step.first_moments.push_back(draw(shape, types.master, 0.1));
    step.second_moments.push_back(draw(shape, types.master, 0.1).square_());
    step.steps.push_back(at::full({}, static_cast<double>(step.masters.size() % 5), at::dtype(at::kFloat).device(device)));
    step.masters.push_back(master);
  }
  step.rate = at::full({}, 0.25, at::dtype(at::kFloat).device(device));
  step.decay = 0.125;
  return step;
}

AdamwStep clone_of(const AdamwStep& step, at::DeviceType device) {
  AdamwStep result = step;
  for (auto* list : {&result.masters, &result.gradients, &result.first_moments, &result.second_moments, &result.steps})
    for (Tensor& tensor : *list) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 0; i < step.masters.size(); ++i)
    result.rounded[i] = step.rounded[i].is_same(step.masters[i])
                            ? result.masters[i]
                            : step.rounded[i].to(device, step.rounded[i].scalar_type(), false, /*copy=*/true);
  result.rate = step.rate.to(device);
  if (step.scale) result.scale = step.scale->to(device);
  if (step.update_enabled) result.update_enabled = step.update_enabled->to(device);
  return result;
}

std::vector<Tensor> all_of(const AdamwStep& step) {
  std::vector<Tensor> all;
  for (const auto* list : {&step.masters, &step.rounded, &step.first_moments, &step.second_moments, &step.steps, &step.gradients})
    for (const Tensor& tensor : *list) all.push_back(tensor.cpu());
  return all;
}

void expect_same(const AdamwStep& a, const AdamwStep& b) {
  const std::vector<Tensor> tensors_a = all_of(a), tensors_b = all_of(b);
  ASSERT_EQ(tensors_a.size(), tensors_b.size());
  for (size_t i = 0; i < tensors_a.size(); ++i) EXPECT_TRUE(same_bits(tensors_a[i], tensors_b[i])) << "tensor " << i;
}

// Entry i by the formula, in double.
void follow(AdamwStep& step, size_t i, double scale) {
  const double rate = step.rate.item<double>(), t = step.steps[i].item<double>() + 1;
  const Tensor g = step.gradients[i].to(at::kDouble) * scale;
  Tensor &p = step.masters[i], &m = step.first_moments[i], &v = step.second_moments[i];
  p = p.to(at::kDouble) * (1 - rate * step.decay);
  m = step.beta1 * m.to(at::kDouble) + (1 - step.beta1) * g;
  v = step.beta2 * v.to(at::kDouble) + (1 - step.beta2) * g * g;
  p = p - rate * (m / (1 - std::pow(step.beta1, t))) / ((v / (1 - std::pow(step.beta2, t))).sqrt() + step.eps);
  step.steps[i].fill_(t);
}

BASED_ON_EVERY_DEVICE(Adamw);

TEST_P(Adamw, FollowsTheFormulaInDouble) {
  torch::manual_seed(61);
  for (const Types& types : kTypes) {
    AdamwStep step = make_step(many_shapes(), types, GetParam()), exact = clone_of(step, at::kCPU);
    for (const bool scaled : {true, false, true}) {
      step.scale = scaled ? std::optional<Tensor>(at::full({}, 0.375, at::dtype(at::kFloat).device(GetParam()))) : std::nullopt;
      adamw_(step);
      for (size_t i = 0; i < step.masters.size(); ++i) {
        follow(exact, i, scaled ? 0.375 : 1);
        const double tolerance = types.master == at::kDouble ? 1e-7 : 1e-5;  // the powers of the betas are fp32's
        EXPECT_TRUE(close(step.masters[i], exact.masters[i], tolerance, 1)) << i << ' ' << types.gradient;
        EXPECT_TRUE(close(step.first_moments[i], exact.first_moments[i], tolerance, 0.1)) << i;
        EXPECT_TRUE(close(step.second_moments[i], exact.second_moments[i], tolerance, 0.01)) << i;
        EXPECT_TRUE(same_bits(step.rounded[i], step.masters[i].to(types.rounded))) << i;
        EXPECT_EQ(step.steps[i].item<float>(), exact.steps[i].item<float>()) << i;
      }
    }
  }
}

TEST_P(Adamw, ChangesNothingWhereItIsNotUsable) {
  torch::manual_seed(62);
  for (const Types& types : kTypes) {
    AdamwStep step = make_step({{3, 8192}, {5}, {4}}, types, GetParam());
    const AdamwStep before = clone_of(step, GetParam());
    const Tensor good = step.gradients[0].clone();
    step.gradients[0].fill_(NAN);
    step.scale = at::full({}, NAN, at::dtype(at::kFloat).device(GetParam()));
    step.update_enabled = at::zeros({}, at::dtype(at::kFloat).device(GetParam()));
    adamw_(step);
    step.gradients[0].copy_(good);
    expect_same(step, before);
    AdamwStep update_enabled = clone_of(before, GetParam()), plain = clone_of(before, GetParam());
    update_enabled.update_enabled = at::ones({}, at::dtype(at::kFloat).device(GetParam()));
    adamw_(update_enabled), adamw_(plain);
    expect_same(update_enabled, plain);
  }
}

TEST_P(Adamw, AFactorOfOneAndSplitListsChangeNoBit) {
  torch::manual_seed(63);
  AdamwStep plain = make_step(many_shapes(), kTypes[0], GetParam()), scaled = clone_of(plain, GetParam());
  AdamwStep alone = clone_of(plain, GetParam());
  scaled.scale = at::ones({}, at::dtype(at::kFloat).device(GetParam()));
  adamw_(plain), adamw_(scaled);
  expect_same(plain, scaled);
  for (size_t i = 0; i < alone.masters.size(); ++i) {
    AdamwStep one = alone;
    one.masters = {alone.masters[i]}, one.rounded = {alone.rounded[i]}, one.gradients = {alone.gradients[i]};
    one.first_moments = {alone.first_moments[i]}, one.second_moments = {alone.second_moments[i]}, one.steps = {alone.steps[i]};
    adamw_(one);
  }
  expect_same(plain, alone);
}

// Elements in another order than the master's are the same elements.
TEST_P(Adamw, TakesGradientsOfAnyLayout) {
  torch::manual_seed(64);
  AdamwStep step = make_step({{40, 30}}, kTypes[0], GetParam()), turned = clone_of(step, GetParam());
  turned.gradients[0] = turned.gradients[0].t().contiguous().t();
  adamw_(step), adamw_(turned);
  EXPECT_TRUE(close(turned.masters[0], step.masters[0], 1e-6));
  AdamwStep both = clone_of(turned, GetParam()), same = clone_of(turned, GetParam());
  for (auto* list : {&both.masters, &both.rounded, &both.gradients, &both.first_moments, &both.second_moments})
    (*list)[0] = (*list)[0].t().contiguous().t();
  for (auto* list : {&same.masters, &same.rounded, &same.gradients, &same.first_moments, &same.second_moments})
    (*list)[0] = (*list)[0].contiguous();
  adamw_(both), adamw_(same);
  EXPECT_TRUE(same_bits(both.rounded[0], same.rounded[0]));
  EXPECT_TRUE(same_bits(both.masters[0], same.masters[0]));
}

// The update of runs that were trained before this operator existed. They may be resumed with it: on the CPU the bits are the same.
TEST(AdamwReference, IsAtensUpdateOfScaledGradients) {
  torch::manual_seed(65);
  for (const Types& types : kTypes) {
    AdamwStep step = make_step({{30, 50}, {7}, {1}}, types, at::kCPU), old = clone_of(step, at::kCPU);
    step.rate = old.rate = at::full({}, 0.01, at::kDouble);
    step.scale = at::full({}, 0.3, types.master);
    step.update_enabled = at::ones({});
    adamw_(step);
    std::vector<Tensor> gradients, rounded, masters;
    for (size_t i = 0; i < old.masters.size(); ++i) gradients.push_back(old.gradients[i].to(types.master, false, /*copy=*/true));
    at::_foreach_mul_(gradients, *step.scale);
    at::_foreach_add_(old.steps, *step.update_enabled);
    at::_fused_adamw_(old.masters, gradients, old.first_moments, old.second_moments, {}, old.steps, old.rate, 0.9, 0.95, 0.125, 1e-8, false,
                      false, {}, 1 - *step.update_enabled);
    if (types.rounded != types.master) at::_foreach_copy_(old.rounded, old.masters);
    expect_same(step, old);
  }
}

TEST(AdamwReference, ErrorsNameOperatorArgumentAndValue) {
  const auto error = [](const std::function<void(AdamwStep&)>& change) {
    AdamwStep step = make_step({{2, 3}, {4}}, kTypes[0], at::kCPU);
    change(step);
    return error_of([&] { adamw_(step); });
  };
  EXPECT_EQ(error([](AdamwStep& s) { s.gradients.pop_back(); }), "adamw_: gradients must be as many as masters, 2, got 1");
  EXPECT_EQ(error([](AdamwStep& s) { s.gradients[1] = at::zeros({5}); }), "adamw_: gradients[1] must have shape [4], got [5]");
  EXPECT_EQ(error([](AdamwStep& s) {
              s.masters[0] = at::zeros({2, 3}, at::kBFloat16);
            }),
            "adamw_: masters[0] must be Float or Double, got BFloat16");
  EXPECT_EQ(error([](AdamwStep& s) {
              s.first_moments[0] = at::zeros({2, 3}, at::kDouble);
            }),
            "adamw_: first_moments[0] must be Float, got Double");
  EXPECT_EQ(error([](AdamwStep& s) { s.steps[1] = at::zeros({}, at::kLong); }), "adamw_: a tensor of steps must be Float, got Long");
  EXPECT_EQ(error([](AdamwStep& s) { s.scale = at::ones({1}); }), "adamw_: scale must have shape [], got [1]");
  EXPECT_EQ(error([](AdamwStep& s) { s.rounded[0].requires_grad_(); }),
            "adamw_: works in place and has no gradient; turn gradients off around it");
}

std::vector<SchemaCase> schema_cases() {
  const AdamwStep s = make_step({{2, 3}, {4}}, kTypes[0], at::kCPU);
  return {{"adamw_",
           {s.masters, s.rounded, s.gradients, s.first_moments, s.second_moments, s.steps, s.rate, at::ones({}), at::ones({}), s.beta1,
            s.beta2, s.eps, s.decay}}};
}

const DefineSchemaCases kSchemaCases("adamw", schema_cases);

}  // namespace adamw_test
}  // namespace based::ops
