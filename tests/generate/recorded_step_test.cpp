#include "based/decode/record.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/models/language_model.h"
#include "based/models/quantised.h"

namespace based {
namespace recorded_step_test {

using torch::Tensor;

enum class Weights { full, int8 };

// Layers as wide as those of the paper's models, so that a recorded step of one sequence of a Based model is one kernel (on Hopper).
std::shared_ptr<LanguageModel> wide_model(const std::string& preset, Weights weights, torch::ScalarType type = torch::kBFloat16) {
  ModelConfig config = find_preset(preset);
  if (preset.starts_with("based-")) config.layers = {"conv", "linear", "window", "conv", "window", "linear"};
  config.layers.resize(6);
  config.vocab_size = weights == Weights::int8 ? 20000 : 1000;  // so many int8 rows that a block's scales are no companions
  torch::manual_seed(11);
  auto model = std::make_shared<LanguageModel>(config);
  model->to(torch::kCUDA, torch::kBFloat16);
  model->to(type);  // the weights stay rounded to bf16
  model->eval();
  if (weights == Weights::full) return model;
  for (const auto& [name, layer] : quantisable_layers(*model)) {
    const ops::QuantisedWeight quantised = ops::quantise(layer->weight().cpu(), ops::WeightForm::int8);
    layer->quantise({quantised.form, quantised.values.to(torch::kCUDA), quantised.scales.to(torch::kCUDA)}, type);
  }
  const ops::QuantisedWeight head = ops::quantise(model->named_parameters()["embedding"].cpu(), ops::WeightForm::int8);
  model->quantise_embedding({head.form, head.values.to(torch::kCUDA), head.scales.to(torch::kCUDA)});
  return model;
}

// Makes steps of some sequences one after another and keeps their logits, [steps, sequences, vocabulary].
class Decoder {
 public:
  Decoder(LanguageModel& model, int64_t sequences) : model_(model), state_(model.make_state(sequences)) {
    const auto ids = torch::dtype(torch::kInt64).device(model.device());
    slots_ = torch::arange(sequences, ids), ids_ = torch::zeros({sequences}, ids);
    logits_ = torch::zeros({sequences, model.config().padded_vocab()}, model.named_parameters()["embedding"].options());
  }
  void step() { logits_.copy_(model_.logits(model_.step(ids_, state_, slots_))); }
  // Each sequence reads tokens of its own. `others` shifts the tokens of all sequences but the first.
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

// A recorded step may round elsewhere than its kernels, and some models amplify a rounding, so both are compared with fp32.
void expect_as_near_to_fp32(const std::string& preset, Weights weights, int64_t sequences, const Tensor& of_kernels,
                            const Tensor& recorded) {
  const auto model = wide_model(preset, weights, torch::kFloat);
  Decoder decoder(*model, sequences);
  const Tensor expected = decoder.steps([&] { decoder.step(); });
  const auto error = [&](const Tensor& logits) { return ((logits - expected).norm() / expected.norm()).item<double>(); };
  EXPECT_LT(error(recorded), std::max(1.25 * error(of_kernels), 1e-2)) << preset << ", " << sequences;
  const double apart = ((recorded - of_kernels).norm() / of_kernels.norm()).item<double>();
  EXPECT_LT(apart, std::max(2e-2, 2.5 * error(of_kernels))) << preset << ", " << sequences;
  EXPECT_LT(error(of_kernels), 0.2) << preset << ", " << sequences;
}

void expect_recorded_step_like_its_kernels(int64_t sequences, const std::vector<const char*>& presets, Weights weights = Weights::full) {
  for (const char* preset : presets) {
    const torch::InferenceMode inference;
    const auto model = wide_model(preset, weights);
    Decoder decoder(*model, sequences);
    const auto step = [&] { decoder.step(); };
    const Tensor of_kernels = decoder.steps([&] { decoder.step(); });
    const auto recorded = decode::record_step(model->device(), step, {/*defers=*/false});
    const auto beside = decode::record_step(model->device(), step, {/*defers=*/false});
    const auto run = [&] { recorded.replay->run(); };
    const Tensor logits = decoder.steps(run);
    expect_as_near_to_fp32(preset, weights, sequences, of_kernels, logits);
    EXPECT_TRUE(torch::equal(logits, decoder.steps([&] { beside.replay->run(); }))) << preset << ", " << sequences;
    EXPECT_TRUE(torch::equal(logits, decoder.steps(run))) << preset << ", " << sequences;
    if (weights == Weights::full || sequences == 1) {
      EXPECT_LT(recorded.plan->launches(), static_cast<int64_t>(recorded.plan->units().size())) << recorded.plan->text();
    }
    EXPECT_TRUE(torch::equal(logits.select(1, 0), decoder.steps(run, 500).select(1, 0))) << preset << ", " << sequences;
  }
}

TEST(RecordedStep, OfOneSequenceIsTheStepOfItsKernels) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  expect_recorded_step_like_its_kernels(1, {"based-360m", "based-1.4b", "gla-360m"});
}

TEST(RecordedStep, OfInt8WeightsIsTheStepOfItsKernels) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  for (const int64_t sequences : {1, 4, 16}) expect_recorded_step_like_its_kernels(sequences, {"based-360m", "based-1.4b"}, Weights::int8);
}

// With several sequences, norms are fused into the layers before and after them (on Hopper).
TEST(RecordedStep, OfSeveralSequencesIsTheStepOfItsKernels) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  for (const int64_t sequences : {2, 16, 128})
    expect_recorded_step_like_its_kernels(sequences, {"based-360m", "based-1.4b", "mamba-360m", "gla-360m"});
}

}  // namespace recorded_step_test
}  // namespace based
