// Initial weights of mixers with their own distributions.
#include <gtest/gtest.h>

#include <cmath>

#include "based/mixers/kit/mixer.h"

namespace based {
namespace drawn_weights_test {

using torch::Tensor;

class DrawnWeights : public testing::Test {
 protected:
  void make(const char* type, const MixerContext& context, Config::Table options = {}) {
    torch::manual_seed(5);
    mixer_ = find_mixer(type).make(Config(std::move(options)), context);
  }
  Tensor operator[](const std::string& name) const { return mixer_->named_parameters()[name].detach(); }

  // Checks that mean and standard deviation are within five standard errors.
  void expect_normal(const std::string& name, double std) const {
    const Tensor drawn = (*this)[name];
    const auto n = static_cast<double>(drawn.numel());
    EXPECT_NEAR(drawn.mean().item<double>(), 0, 5 * std / std::sqrt(n)) << name;
    EXPECT_NEAR(drawn.std().item<double>(), std, 5 * std / std::sqrt(2 * n)) << name;
  }
  static void expect_uniform(const std::string& name, const Tensor& drawn, double low, double high) {
    const auto n = static_cast<double>(drawn.numel());
    EXPECT_GE(drawn.min().item<double>(), low - 1e-6) << name;
    EXPECT_LE(drawn.max().item<double>(), high + 1e-6) << name;
    EXPECT_NEAR(drawn.mean().item<double>(), (low + high) / 2, 5 * (high - low) / std::sqrt(12 * n)) << name;
    EXPECT_GT(drawn.max().item<double>() - drawn.min().item<double>(), (high - low) * 0.8) << name;
  }
  void expect_all(const std::string& name, double value) const { EXPECT_TRUE(((*this)[name] == value).all().item<bool>()) << name; }
  // softplus(dt_bias) is uniform in the logarithm from 0.001 to 0.1.
  void expect_time_steps() const {
    expect_uniform("dt_bias", torch::log1p((*this)["dt_bias"].exp()).log(), std::log(0.001), std::log(0.1));
  }

  std::shared_ptr<Mixer> mixer_;
};

TEST_F(DrawnWeights, OfGlaDeltaNetAndGatedDeltaNet) {
  for (const char* type : {"gla", "delta_net", "gated_delta_net"}) {
    for (const bool rescaled : {true, false}) {
      make(type, {128, 0, 8}, {{"rescale_output", Config(rescaled)}, {"use_gate", Config(true)}, {"use_short_conv", Config(true)}});
      for (const char* name : {"q_proj", "k_proj", "v_proj", "g_proj"}) expect_normal(std::string(name) + ".weight", 0.02);
      expect_normal("o_proj.weight", rescaled ? 0.02 / 4 : 0.02);
      expect_all("norm.weight", 1);
      expect_uniform("k_conv", (*this)["k_conv.weight"], -0.5, 0.5);
    }
  }
  make("gla", {128, 0, 8});
  expect_normal("decay_up.weight", 0.02);
  expect_all("decay_up.bias", 0);
  make("gated_delta_net", {128, 0, 8}, {{"heads", Config(int64_t{128})}});
  expect_uniform("A_log", (*this)["A_log"].exp(), 0, 16);
  expect_time_steps();
}

// Linear layers have torch's distribution; the last one is divided by √layers.
TEST_F(DrawnWeights, OfMamba2) {
  make("mamba2", {128, 0, 4}, {{"headdim", Config(int64_t{2})}});
  expect_uniform("in_proj", (*this)["in_proj.weight"], -1 / std::sqrt(128.0), 1 / std::sqrt(128.0));
  expect_uniform("out_proj", (*this)["out_proj.weight"], -1 / std::sqrt(256.0) / 2, 1 / std::sqrt(256.0) / 2);
  expect_uniform("conv", (*this)["conv.weight"], -0.5, 0.5);
  expect_uniform("A_log", (*this)["A_log"].exp(), 1, 16);
  expect_time_steps();
  expect_all("D", 1);
  expect_all("norm.weight", 1);
}

// The formulas of its authors' listing, which depend on the layer's depth; here for the last of three layers.
TEST_F(DrawnWeights, OfRwkv5) {
  make("rwkv5", {64, 2, 3}, {{"head_size", Config(int64_t{16})}});
  const Tensor channel = torch::arange(64, torch::kFloat64), along = channel / 63;
  const auto expect_equal = [&](const std::string& name, const Tensor& wanted) {
    EXPECT_LT(((*this)[name].to(torch::kFloat64).flatten() - wanted).abs().max().item<double>(), 1e-6) << name;
  };
  expect_equal("shift.time_mix_k", (channel / 64).pow(1.0 / 3));
  expect_equal("shift.time_mix_v", (channel / 64).pow(1.0 / 3) + 0.3);
  expect_equal("shift.time_mix_r", (channel / 64).pow(1.0 / 6));
  expect_equal("shift.time_mix_g", (channel / 64).pow(1.0 / 6));
  expect_equal("time_decay", -6 + 5 * along.square());
  expect_equal("bonus", (1 - along) + ((channel + 1).remainder(3) - 1) * 0.1);
  expect_normal("k_proj.weight", 0.02);
  expect_normal("o_proj.weight", 0.02 / std::sqrt(6.0));
  make("rwkv5_channel_mix", {64, 2, 3});
  EXPECT_EQ((*this)["k_proj.weight"].sizes(), at::IntArrayRef({224, 64}));
  expect_equal("shift.time_mix_k", (channel / 64).pow(1.0 / 3));
}

}  // namespace drawn_weights_test
}  // namespace based
