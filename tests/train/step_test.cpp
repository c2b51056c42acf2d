// One optimizer step, and what it draws.
#include "based/train/step.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace based
