// Conversion of an fp32 model to bf16, as by --dtype bf16: it computes the same function up to rounding, also for long sequences.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <set>

#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/wide_parameters.h"

namespace based {
namespace bf16_test {

using torch::Tensor;

struct Case {
  std::string name, mixer, options;
};
void PrintTo(const Case& given, std::ostream* to) { *to << given.name; }

constexpr int64_t kWidth = 64;
// Rounding to 8 bits gives errors of about 0.3 %, and a mixer rounds several times.
constexpr double kAllowed = 0.015;

// A mixer with its authors' initial weights, except for larger projections, so that no part of the output is negligible.
std::shared_ptr<Mixer> make(const Case& given) {
  torch::manual_seed(11);
  const MixerInfo& info = find_mixer(given.mixer);
  Config options = Config::parse_toml(given.options, "test");
  for (const auto& field : info.help())
    if (field.name == "heads") options.set("heads", Config(int64_t{2}));
  auto mixer = info.make(options, {kWidth, /*layer=*/0, /*layers=*/2});
  const torch::NoGradGuard no_grad;
  for (auto& item : mixer->named_parameters())
    if (item.key().find("proj") != std::string::npos && item.key().ends_with("weight")) item.value().normal_(0, 1.0 / 8);
  return mixer;
}

Tensor forward(Mixer& mixer, const Tensor& x) { return mixer.forward(x, Pass(Sequences::equal(1, x.size(0), x.device()))); }

// Prefill of a prompt, then token by token.
Tensor decoded(Mixer& mixer, const Tensor& x, int64_t prompt) {
  MixerState state = mixer.make_state(1);
  const auto ids = torch::dtype(torch::kInt64).device(x.device());
  const Tensor slots = torch::zeros({1}, ids);
  std::vector<Tensor> rows{
      mixer.prefill(x.narrow(0, 0, prompt), state, Pass(Sequences::equal(1, prompt, x.device()), slots, torch::zeros({1}, ids)))};
  for (int64_t t = prompt; t < x.size(0); ++t)
    rows.push_back(mixer.step(x.narrow(0, t, 1), state, Pass::step(slots, torch::full({1}, t, ids))));
  return torch::cat(rows);
}

double rms_error(const Tensor& actual, const Tensor& expected) {
  const Tensor difference = actual.to(torch::kCPU, torch::kDouble) - expected;
  return std::sqrt((difference.square().mean() / expected.square().mean()).item<double>());
}

Tensor inputs_of(int64_t tokens) { return torch::randn({tokens, kWidth}, torch::kDouble).to(torch::kBFloat16); }

class ConvertedToBf16 : public testing::TestWithParam<std::tuple<Case, torch::DeviceType>> {};

TEST_P(ConvertedToBf16, IsTheSameFunction) {
  const auto& [given, type] = GetParam();
  const torch::Device device = type;
  if (device.is_cuda() && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::NoGradGuard no_grad;
  const auto exact = make(given), rounded = make(given);
  exact->to(torch::kDouble);
  rounded->to(device, torch::kBFloat16);
  for (const int64_t length : {63, 1100}) {
    const Tensor x = inputs_of(length + 4), expected = forward(*exact, x.to(torch::kDouble)), there = x.to(device);
    EXPECT_LT(rms_error(forward(*rounded, there), expected), kAllowed) << "forward, " << length;
    if (!find_mixer(given.mixer).recurrent) continue;
    EXPECT_LT(rms_error(decoded(*rounded, there, length), expected), kAllowed) << "prefill and steps, " << length;
  }
}

// If all weights including the poles are rounded to bf16, H3 exceeds this bound by far, even computed in double.
TEST(WideParameters, RoundedPolesAreAnotherFunction) {
  const torch::NoGradGuard no_grad;
  const Case given{"h3", "h3", ""};
  const auto exact = make(given), poles = make(given), others = make(given);
  for (const auto& mixer : {exact, poles, others}) mixer->to(torch::kDouble);
  for (const auto& [mixer, is_pole] : {std::pair{poles, true}, {others, false}})
    for (auto& item : mixer->named_parameters())
      if (item.key().starts_with("diagonal.") == is_pole) item.value().copy_(item.value().to(torch::kBFloat16).to(torch::kDouble));
  for (const int64_t length : {63, 1100}) {
    const Tensor x = inputs_of(length).to(torch::kDouble), expected = forward(*exact, x);
    EXPECT_GT(rms_error(forward(*poles, x), expected), 2 * kAllowed) << length;
    EXPECT_LT(rms_error(forward(*others, x), expected), kAllowed / 2) << length;
  }
}

// All mixers with their defaults, and with large values of parameters that are frequencies.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const MixerInfo& info : mixers()) all.push_back({info.name, info.name, ""});
  all.push_back({"h3_of_heads", "h3", "d_state = 32\nhead_dim = 2"});
  all.push_back({"hyena_of_frequency_14", "hyena", "w = 14.0\nl_max = 1200"});
  all.push_back({"base_conv_of_a_network", "base_conv", "kernel_size = -1\nl_max = 1200\nimplicit = true"});
  for (const FeatureMapInfo& map : feature_maps()) {
    const std::string name = map.name;
    // Weights may be negative: eps keeps the denominator away from 0, where rounding errors would dominate.
    const std::string eps = name == "identity" || name == "all_poly" ? "\neps = 1e6" : "";
    all.push_back({"linear_attention_of_" + name, "linear_attention", "feature_map = \"" + name + "\"" + eps});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryMixer, ConvertedToBf16,
                         testing::Combine(testing::ValuesIn(cases()), testing::Values(torch::kCPU, torch::kCUDA)),
                         [](const testing::TestParamInfo<std::tuple<Case, torch::DeviceType>>& given) {
                           return std::get<0>(given.param).name + (std::get<1>(given.param) == torch::kCUDA ? "_cuda" : "");
                         });

TEST(WideParameters, StayInFp32WhereOthersAreNarrower) {
  const auto mixer = find_mixer("h3").make(Config(Config::Table{}), {8, 0, 2});
  const auto types = [&] {
    std::set<torch::Dtype> wide, others;
    for (const auto& item : mixer->named_parameters())
      (item.key().starts_with("diagonal.") ? wide : others).insert(item.value().scalar_type());
    return std::pair{wide, others};
  };
  const auto poles = mixer->named_parameters()["diagonal.frequency"].detach().clone();
  using Types = std::set<torch::Dtype>;
  mixer->to(torch::kBFloat16);
  EXPECT_EQ(types(), std::pair(Types{torch::kFloat}, Types{torch::kBFloat16}));
  mixer->to(torch::kCPU, torch::kHalf);
  EXPECT_EQ(types(), std::pair(Types{torch::kFloat}, Types{torch::kHalf}));
  EXPECT_TRUE(poles.equal(mixer->named_parameters()["diagonal.frequency"]));
  mixer->to(torch::kDouble);
  EXPECT_EQ(types(), std::pair(Types{torch::kDouble}, Types{torch::kDouble}));
}

}  // namespace bf16_test
}  // namespace based
