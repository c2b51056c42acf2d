// A GPU's gradients repeat their bits at the sizes of real models, where kernels divide sums among blocks.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>
#include <tuple>

#include "based/mixers/kit/mixer.h"
#include "based/train/classification_model.h"

namespace based {
namespace repeat_test {

struct Shape {
  int64_t rows, length;
};

using Gradients = std::vector<std::pair<std::string, Tensor>>;

Gradients gradients_of(LanguageModel& model, const Tensor& ids, const Tensor& labels, const Sequences& rows) {
  model.zero_grad();
  const Tensor loss = model.loss(ids, labels, rows);
  loss.backward();
  Gradients found{{"loss", loss.detach().clone()}};
  for (const auto& item : model.named_parameters())
    if (item.value().grad().defined()) found.emplace_back(item.key(), item.value().grad().clone());
  return found;
}

void expect_repeated(LanguageModel& model, const Tensor& ids, const Tensor& labels, const Sequences& rows) {
  const Gradients first = gradients_of(model, ids, labels, rows);
  for (int i = 0; i < 6; ++i) {
    const Gradients again = gradients_of(model, ids, labels, rows);
    ASSERT_EQ(again.size(), first.size());
    for (size_t p = 0; p < first.size(); ++p) EXPECT_TRUE(torch::equal(again[p].second, first[p].second)) << first[p].first << ' ' << i;
  }
}

class RepeatedSteps : public testing::TestWithParam<std::tuple<MixerInfo, Shape>> {};

// Few ids, so that a row of the embedding has hundreds of tokens: of a classifier, and of a language model.
TEST_P(RepeatedSteps, HaveTheSameGradients) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto& [mixer, shape] = GetParam();
  const torch::Device device(torch::kCUDA, 0);
  ModelConfig config;
  config.vocab_size = 16;
  config.d_model = 512;
  config.mlp_width = 1024;
  config.max_positions = shape.length;
  config.layers = {std::string(mixer.name), std::string(mixer.name)};
  const auto classifier = make_classifier(config, {{"no", "yes"}, "mean"}, 1);
  const auto language_model = make_model(config, 1);
  torch::manual_seed(3);
  const Tensor ids = torch::randint(0, 12, {shape.rows * shape.length}, torch::kInt64).to(device);
  const Tensor labels = torch::randint(0, 2, {shape.rows}, torch::kInt64).to(device);
  const Sequences rows = Sequences::equal(shape.rows, shape.length, device);
  for (LanguageModel* const model : {static_cast<LanguageModel*>(classifier.get()), language_model.get()}) {
    model->to(device, torch::kBFloat16);
    model->train();
    expect_repeated(*model, ids, model == language_model.get() ? ids.roll(-1) : labels, rows);
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, RepeatedSteps,
                         testing::Combine(testing::ValuesIn(mixers()), testing::Values(Shape{64, 101}, Shape{4, 2048})),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + std::to_string(std::get<1>(test.param).length);
                         });

}  // namespace repeat_test
}  // namespace based
