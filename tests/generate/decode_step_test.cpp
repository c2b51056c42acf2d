#include "based/generate/decode_step.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/core/error.h"
#include "based/runtime/replay.h"
#include "tests/generate/texts.h"

namespace based {
namespace decode_step_test {

// Log-probabilities of the most likely next token after each token of `text`, from steps in the first and in the last slot: [steps, 2].
Tensor log_probabilities(LanguageModel& model, int64_t slots, Steps steps, const std::vector<int64_t>& text) {
  const torch::InferenceMode inference;
  ModelState state = model.make_state(slots);
  DecodeStep step(model, state, {.steps = steps, .log_probabilities = true});
  std::vector<int64_t> all;
  for (int64_t slot = 0; slot < slots; ++slot) all.push_back(slot);
  step.set_sampling(all, std::vector<SamplingOptions>(all.size(), kGreedy));
  std::vector<float> kept;
  std::vector<int64_t> prefix;
  for (const int64_t id : text) {
    prefix.push_back(id);
    step.load_last_tokens(all, std::vector<const std::vector<int64_t>*>(all.size(), &prefix));
    step.run(all);
    step.begin_readback();
    const float* got = step.finish_readback().log_probabilities;
    kept.push_back(got[0]), kept.push_back(got[slots - 1]);
  }
  return torch::tensor(kept).view({-1, 2});
}

// "wide": layers as wide as those of the paper's models, so that a step of one sequence is one kernel (on Hopper).
std::shared_ptr<LanguageModel> model_of(const std::string& preset) {
  if (preset != "wide") return distinct_model(torch::kCUDA, preset);
  ModelConfig config = find_preset("based-360m");
  config.layers = {"conv", "linear", "window", "conv", "window", "linear"};
  config.vocab_size = 1000;
  torch::manual_seed(11);
  auto model = std::make_shared<LanguageModel>(config);
  model->to(torch::kCUDA);
  model->eval();
  return model;
}

// The reference has the same weights and rounds nothing to bf16. Fused kernels round at other places than plain ones, but not more.
TEST(DecodeStep, FusedStepsInBf16AreAsNearToFp32AsPlainOnes) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto text = some_text(100, 3);
  for (const char* preset : {"based-tiny", "based-demo", "wide"}) {
    const auto model = model_of(preset), exact = model_of(preset);
    model->to(torch::kBFloat16);
    exact->to(torch::kBFloat16);
    exact->to(torch::kFloat);
    for (const int64_t slots : {1, 8, 200}) {  // each is fused in another way
      const Tensor expected = log_probabilities(*exact, slots, Steps::plain, text);
      const Tensor plain = log_probabilities(*model, slots, Steps::plain, text),
                   fused = log_probabilities(*model, slots, Steps::fused, text);
      const auto rms = [](const Tensor& x) { return x.square().mean().sqrt().item<double>(); };
      const double of_plain = rms(plain - expected), of_fused = rms(fused - expected), between = rms(fused - plain);
      const std::string where = std::string(preset) + ", " + std::to_string(slots) + " slots: plain " + std::to_string(of_plain) +
                                ", fused " + std::to_string(of_fused) + ", between them " + std::to_string(between);
      EXPECT_TRUE(fused.isfinite().all().item<bool>()) << where;
      EXPECT_LT(of_fused, 1.5 * of_plain) << where;
      EXPECT_LT(between, 2 * of_plain) << where;
      EXPECT_LT((fused - plain).abs().max().item<double>(), 0.15) << where;
    }
  }
}

// A device that records nothing: its steps run, and one warning says why they are slow.
TEST(DecodeStepOnCpu, WarnsOnceOfStepsThatAreNotRecorded) {
  const auto model = distinct_model(torch::kCPU);
  runtime::recorder_of(torch::kCPU) = [](torch::Device, const std::function<void()>&,
                                         const runtime::RecordOptions&) -> std::unique_ptr<runtime::Replay> {
    throw Error("nothing is recorded here");
  };
  for (const bool fixed_rows : {false, true}) {
    ModelState state = model->make_state(1);
    testing::internal::CaptureStderr();
    DecodeStep step(*model, state, {.fixed_rows = fixed_rows});
    const std::string printed = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 1) << printed;
    EXPECT_NE(printed.find("steps are not recorded and slower: nothing is recorded here"), std::string::npos) << printed;
  }
  runtime::recorder_of(torch::kCPU) = nullptr;
}

}  // namespace decode_step_test
}  // namespace based
