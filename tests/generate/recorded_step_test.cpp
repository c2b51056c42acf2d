#include "based/decode/record.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/models/language_model.h"

namespace based {
namespace {

using torch::Tensor;

// Layers as wide as a model's of the paper, so that a recorded step of one text is one kernel of Based's (on Hopper).
std::shared_ptr<LanguageModel> wide_model(const std::string& preset, torch::ScalarType type = torch::kBFloat16) {
  ModelConfig config = find_preset(preset);
  if (preset.starts_with("based-")) config.layers = {"conv", "linear", "window", "conv", "window", "linear"};
  config.layers.resize(6);
  config.vocab_size = 1000;
  torch::manual_seed(11);
  auto model = std::make_shared<LanguageModel>(config);
  model->to(torch::kCUDA, torch::kBFloat16);
  model->to(type);  // of weights rounded to bf16
  model->eval();
  return model;
}

// Logits of steps of `texts` texts, one after the other, [steps, texts, vocabulary].
class Decoder {
 public:
  Decoder(LanguageModel& model, int64_t texts) : model_(model), state_(model.make_state(texts)) {
    const auto ids = torch::dtype(torch::kInt64).device(model.device());
    slots_ = torch::arange(texts, ids), ids_ = torch::zeros({texts}, ids);
    logits_ = torch::zeros({texts, model.config().padded_vocab()}, model.named_parameters()["embedding"].options());
  }
  void step() { logits_.copy_(model_.logits(model_.step(ids_, state_, slots_))); }
  // Text t reads words of its own, but for the first one each text's are `others` further.
  Tensor steps(const std::function<void()>& step, int64_t others = 0) {
    state_.zero(slots_);
    std::vector<Tensor> all;
    for (int64_t i = 0; i < 40; ++i) {
      ids_.copy_((slots_ * 131 + (slots_ > 0) * others + i * 37) % 1000);
      step();
      all.push_back(logits_.to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true));
    }
    return torch::stack(all);
  }

 private:
  LanguageModel& model_;
  ModelState state_;
  Tensor slots_, ids_, logits_;
};

// Kernels' roundings may differ from the recorded step's, so both are held against fp32: some models make much of a rounding.
void expect_as_near_to_fp32(const std::string& preset, int64_t texts, const Tensor& of_kernels, const Tensor& recorded) {
  const auto model = wide_model(preset, torch::kFloat);
  Decoder decoder(*model, texts);
  const Tensor expected = decoder.steps([&] { decoder.step(); });
  const auto error = [&](const Tensor& logits) { return ((logits - expected).norm() / expected.norm()).item<double>(); };
  EXPECT_LT(error(recorded), std::max(1.25 * error(of_kernels), 1e-2)) << preset << ", " << texts;
  const double apart = ((recorded - of_kernels).norm() / of_kernels.norm()).item<double>();
  EXPECT_LT(apart, std::max(2e-2, 2.5 * error(of_kernels))) << preset << ", " << texts;
  EXPECT_LT(error(of_kernels), 0.2) << preset << ", " << texts;
}

void expect_recorded_step_like_its_kernels(int64_t texts, const std::vector<const char*>& presets) {
  for (const char* preset : presets) {
    const torch::InferenceMode inference;
    const auto model = wide_model(preset);
    Decoder decoder(*model, texts);
    const auto step = [&] { decoder.step(); };
    const Tensor of_kernels = decoder.steps([&] { decoder.step(); });
    const auto recorded = decode::record_step(model->device(), step, {/*defers=*/false});
    const auto beside = decode::record_step(model->device(), step, {/*defers=*/false});
    const auto run = [&] { recorded.replay->run(); };
    const Tensor logits = decoder.steps(run);
    expect_as_near_to_fp32(preset, texts, of_kernels, logits);
    EXPECT_TRUE(torch::equal(logits, decoder.steps([&] { beside.replay->run(); }))) << preset << ", " << texts;
    EXPECT_TRUE(torch::equal(logits, decoder.steps(run))) << preset << ", " << texts;
    EXPECT_LT(recorded.plan->launches(), static_cast<int64_t>(recorded.plan->units().size())) << recorded.plan->text();
    EXPECT_TRUE(torch::equal(logits.select(1, 0), decoder.steps(run, 500).select(1, 0))) << preset << ", " << texts;
  }
}

TEST(RecordedStep, OfOneTextIsTheStepOfItsKernels) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  expect_recorded_step_like_its_kernels(1, {"based-360m", "based-1.4b", "gla-360m"});
}

// Of several texts, norms are in the layers before and after (on Hopper).
TEST(RecordedStep, OfSeveralTextsIsTheStepOfItsKernels) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  for (const int64_t texts : {2, 16, 128})
    expect_recorded_step_like_its_kernels(texts, {"based-360m", "based-1.4b", "mamba-360m", "gla-360m"});
}

}  // namespace
}  // namespace based
