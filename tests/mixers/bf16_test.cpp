// What a model of fp32 becomes in bf16, as --dtype bf16 makes it: the same function but for roundings, also where a text is long.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/mixers/mixer.h"
#include "based/mixers/wide_parameters.h"

namespace based {
namespace {

using torch::Tensor;

class InBf16 : public testing::TestWithParam<std::tuple<std::string, torch::DeviceType>> {
 protected:
  void SetUp() override {
    if (device() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  const MixerInfo& info() const { return find_mixer(std::get<0>(GetParam())); }
  torch::Device device() const { return std::get<1>(GetParam()); }

  // As its authors draw it, with projections large enough that nothing vanishes beside the inputs.
  std::shared_ptr<Mixer> make() const {
    torch::manual_seed(11);
    Config options{Config::Table{}};
    for (const auto& field : info().help())
      if (field.name == "heads") options.set("heads", Config(int64_t{2}));
    auto mixer = info().make(options, {64, /*layer=*/0, /*layers=*/2});
    const torch::NoGradGuard no_grad;
    for (auto& item : mixer->named_parameters())
      if (item.key().find("proj") != std::string::npos && item.key().ends_with("weight")) item.value().normal_(0, 1.0 / 8);
    return mixer;
  }
};

Tensor forward(Mixer& mixer, const Tensor& x) { return mixer.forward(x, Pass(Sequences::equal(1, x.size(0), x.device()))); }

// A prompt at once, then token by token.
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

TEST_P(InBf16, IsTheSameFunction) {
  const torch::NoGradGuard no_grad;
  const auto exact = make(), rounded = make();
  exact->to(torch::kDouble);
  rounded->to(device(), torch::kBFloat16);
  for (const int64_t length : {63, 257, 1100}) {
    const Tensor x = torch::randn({length + 4, 64}, torch::kDouble).to(torch::kBFloat16);
    const Tensor expected = forward(*exact, x.to(torch::kDouble)), given = x.to(device());
    // Roundings to 8 bits are some 0.3 %, of which a mixer makes several one after the other.
    constexpr double kAllowed = 0.03;
    EXPECT_LT(rms_error(forward(*rounded, given), expected), kAllowed) << "forward, " << length;
    if (!info().recurrent) continue;
    EXPECT_LT(rms_error(decoded(*rounded, given, length), expected), kAllowed) << "prefill and steps, " << length;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const MixerInfo& info : mixers()) all.emplace_back(info.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryMixer, InBf16, testing::Combine(testing::ValuesIn(names()), testing::Values(torch::kCPU, torch::kCUDA)),
                         [](const testing::TestParamInfo<InBf16::ParamType>& given) {
                           return std::get<0>(given.param) + (std::get<1>(given.param) == torch::kCUDA ? "_cuda" : "");
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

}  // namespace
}  // namespace based
