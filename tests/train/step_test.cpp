// One optimizer step, and what it draws.
#include "based/train/step.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

namespace based {
namespace {

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

// A batch that says where its labels are makes the step that looks for them, to the bit, recorded or not.
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
        for (const int64_t at : {0, 1, 2}) {  // labels lie elsewhere in each
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

}  // namespace
}  // namespace based
