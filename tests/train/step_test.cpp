// One optimizer step and its dropout.
#include "based/train/step.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>
#include <tuple>

#include "based/mixers/kit/mixer.h"

namespace based {
namespace step_test {

ModelConfig dropping() {
  ModelConfig config = find_preset("based-tiny");
  config.embedding_dropout = 0.3;
  return config;
}

Batch batch() {
  const Tensor ids = torch::arange(32) * 5 % 251;
  return {ids, (ids + 1) % 251, Sequences::equal(2, 16), {}, 32};
}

// The batches of a step, and the same batch in another step, drop other elements, recorded or not.
TEST(TrainStep, DrawsByTheSeedAndTheNumberOfEachBatch) {
  for (const bool recorded : {false, true}) {
    const auto model = make_model(dropping(), 1);
    model->train();
    AdamW optimizer(*model, {});
    TrainStep step(*model, optimizer, {.recordings = recorded ? 1 : 0, .seed = 9});
    const auto loss = [&](int64_t draw) {
      const torch::NoGradGuard no_grad;
      const Batch one = batch();
      return model->loss(one.ids, one.labels, one.rows, one.labelled, {9, torch::tensor(draw, torch::kInt64)}).item<double>();
    };
    for (const int64_t at : {0, 4}) {
      const double first = loss(2 * at), second = loss(2 * at + 1);
      EXPECT_GT(std::abs(first - second), 1e-6);
      EXPECT_NEAR(step.run({batch(), batch()}, at, 1e-3)[0].item<double>(), (first + second) / 2, 1e-5) << at;
    }
  }
}

// A batch with the indices of its labels gives the same bits as one without, recorded or not.
TEST(TrainStep, PlacesOfLabelsChangeNoBit) {
  std::vector<torch::Device> devices{torch::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(torch::kCUDA, 0);
  for (const torch::Device device : devices)
    for (const bool recorded : {false, true}) {
      const auto weights = [&](bool placed) {
        const auto model = make_model(dropping(), 1);
        model->to(device);
        model->train();
        AdamW optimizer(*model, {});
        TrainStep step(*model, optimizer, {.recordings = recorded ? 1 : 0, .seed = 9});
        std::vector<Tensor> found;
        for (const int64_t at : {0, 1, 2}) {  // the labels have other indices in each step
          const Batch whole = batch();
          const Tensor places = (torch::arange(8) * 4 + at).to(device), labels = whole.labels.to(device).index_select(0, places);
          const Tensor all = torch::full({32}, -100, labels.options()).index_copy_(0, places, labels);
          const Sequences rows = Sequences::equal(2, 16, device);
          const Batch one{whole.ids.to(device), placed ? labels : all, rows, {}, 8, placed ? places : Tensor()};
          found.push_back(step.run({one}, at, 1e-2));
        }
        for (const Tensor& parameter : model->parameters()) found.push_back(parameter.detach());
        return found;
      };
      const std::vector<Tensor> placed = weights(true), looked_for = weights(false);
      for (size_t i = 0; i < placed.size(); ++i) EXPECT_TRUE(torch::equal(placed[i], looked_for[i])) << i << ' ' << device;
    }
}

class EveryMixer : public testing::TestWithParam<std::tuple<MixerInfo, std::string>> {};

// A mixer's launches depend only on shapes, so that its steps can be recorded on a GPU.
TEST_P(EveryMixer, TrainsInRecordedSteps) {
  const auto& [mixer, type] = GetParam();
  const torch::Device device(type);
  if (device.is_cuda() && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  ModelConfig config;
  config.vocab_size = 251;
  config.d_model = 64;
  config.layers = {std::string(mixer.name)};
  config.mlp = "none";
  const auto figures = [&](bool recorded) {
    const auto model = make_model(config, 1);
    model->to(device);
    model->train();
    AdamW optimizer(*model, {});
    TrainStep step(*model, optimizer, {.recordings = recorded ? 1 : 0, .seed = 9});
    const Batch one = batch();
    const Batch here{one.ids.to(device), one.labels.to(device), Sequences::equal(2, 16, device), {}, one.labelled};
    std::vector<double> found;  // losses and norms of gradients; the later ones tell of the updates before
    for (const int64_t at : {0, 1, 2}) {
      const Tensor step_figures = step.run({here}, at, 1e-3).cpu();
      for (const int64_t i : {0, 1}) found.push_back(step_figures[i].item<double>());
    }
    return found;
  };
  const std::vector<double> plain = figures(false), recorded = figures(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(recorded[i], plain[i], 1e-3 * plain[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMixer, testing::Combine(testing::ValuesIn(mixers()), testing::Values("cpu", "cuda")),
                         [](const auto& test) { return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param); });

}  // namespace step_test
}  // namespace based
