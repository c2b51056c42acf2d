// Hyena and H3: the authors' initial weights, long sequences, and cached filters, which must follow their weights.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "based/mixers/kit/long_filter.h"
#include "based/mixers/kit/mixer.h"
#include "tests/models/drawn.h"

namespace based {
namespace long_convolutions_test {

using torch::Tensor;

std::shared_ptr<Mixer> make(const char* name, int64_t d_model, const char* options = "") {
  torch::manual_seed(1);
  return find_mixer(name).make(Config::parse_toml(options, "test"), {d_model, /*layer=*/0, /*layers=*/2});
}

TEST(Hyena, IsDrawnAsItsAuthorsDrawIt) {
  const auto mixer = make("hyena", 128, "l_max = 256");
  for (const auto& item : mixer->named_parameters()) {
    const std::string& name = item.key();
    const Tensor& drawn = item.value();
    if (name == "filter.z")
      EXPECT_TRUE(drawn.equal(position_features(256, 3).to(torch::kFloat32)));
    else if (name == "filter.frequency")
      expect_constant(name, drawn, 1);
    else if (name == "filter.bias")
      expect_normal(name, drawn, 1);
    else if (name.starts_with("conv."))
      expect_uniform(name, drawn, -1 / std::sqrt(3.0), 1 / std::sqrt(3.0));
    else if (name.ends_with(".bias"))
      expect_constant(name, drawn, 0);
    else
      expect_normal(name, drawn, name == "out_proj.weight" ? 0.02 / std::sqrt(4.0) : 0.02);
  }
}

TEST(H3, IsDrawnAsItsAuthorsDrawIt) {
  const auto mixer = make("h3", 128, "d_state = 32\nhead_dim = 2");
  for (const auto& item : mixer->named_parameters()) {
    const std::string& name = item.key();
    const Tensor& drawn = item.value();
    if (name == "shift.B")
      EXPECT_TRUE(drawn.equal(torch::eye(1, 32).expand({128, 32})));
    else if (name == "shift.C")
      expect_uniform(name, drawn, -1 / std::sqrt(32.0), 1 / std::sqrt(32.0));
    else if (name == "diagonal.log_dt")
      expect_uniform(name, drawn, std::log(0.001), std::log(0.1));
    else if (name == "diagonal.log_decay")
      EXPECT_TRUE(drawn.allclose(torch::full({64, 16}, std::log(0.5))));
    else if (name == "diagonal.frequency")
      EXPECT_TRUE(drawn.allclose((torch::arange(16) * std::numbers::pi).expand({64, 16}).to(torch::kFloat32)));
    else if (name == "diagonal.B")
      EXPECT_TRUE(drawn.equal(torch::tensor({1.0F, 0.0F}).expand({64, 16, 2})));
    else if (name == "diagonal.C")
      expect_normal(name, drawn, 1 / std::sqrt(2.0));
    else if (name.ends_with(".D"))
      expect_normal(name, drawn, 1);
    else if (name.ends_with(".bias"))
      expect_constant(name, drawn, 0);
    else
      expect_normal(name, drawn, 0.02);
  }
}

// A sequence of several pieces, the last one incomplete, compared with the recurrence.
TEST(H3, LongTextsAreReadInPieces) {
  const auto mixer = make("h3", 4, "d_state = 4\nhead_dim = 2");
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard none;
  constexpr int64_t length = 2100;
  const Tensor x = torch::randn({2 * length, 4}, torch::kFloat64), slots = torch::arange(2);
  const Tensor whole = mixer->forward(x, Pass(Sequences::equal(2, length))).view({2, length, 4});
  MixerState state = mixer->make_state(2);
  std::vector<Tensor> stepped;
  for (int64_t t = 0; t < length; ++t)
    stepped.push_back(mixer->step(x.view({2, length, 4}).select(1, t), state, Pass::step(slots, torch::full({2}, t))));
  EXPECT_TRUE(torch::stack(stepped, 1).allclose(whole, 1e-9, 1e-11));
}

// Tensors computed from weights are computed once while gradients are off, and again after the weights or their type change.
class CacheOf : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Mixers, CacheOf, testing::Values("hyena", "h3"), [](const auto& given) { return std::string(given.param); });

TEST_P(CacheOf, WeightsFollowsThem) {
  const auto mixer = make(GetParam(), 8);
  const Tensor x = torch::randn({9, 8});
  const auto steps = [&](const Tensor& in) {
    const torch::NoGradGuard none;
    MixerState state = mixer->make_state(1);
    std::vector<Tensor> outputs;
    for (int64_t t = 0; t < 9; ++t)
      outputs.push_back(mixer->step(in.narrow(0, t, 1), state, Pass::step(torch::zeros({1}, torch::kInt64), torch::full({1}, t))));
    return torch::cat(outputs);
  };
  const auto expect_fresh = [&](const std::string& after, const Tensor& in) {
    const Tensor fresh = mixer->forward(in, Pass(Sequences::equal(1, 9))).detach();
    EXPECT_TRUE(steps(in).allclose(fresh, 1e-4, 1e-6)) << after;
  };
  expect_fresh("a new mixer", x);
  for (const auto& item : mixer->named_parameters()) {
    const Tensor before = steps(x);
    {
      const torch::NoGradGuard none;
      item.value().add_(0.3);
    }
    expect_fresh(item.key(), x);
    EXPECT_FALSE(steps(x).equal(before)) << item.key();
  }
  mixer->to(torch::kFloat64);
  expect_fresh("another type", x.to(torch::kFloat64));
}

}  // namespace long_convolutions_test
}  // namespace based
