// Dropout in training depends only on the run's seed and the step's number, and the initial weights only on the seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "based/models/language_model.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace dropout_test {

using ::testing::HasSubstr;
using torch::Tensor;

ModelConfig small(double embedding_dropout) {
  ModelConfig config = find_preset("based-tiny");
  config.embedding_dropout = embedding_dropout;
  return config;
}

ops::Draws draws_of(int64_t seed, int64_t step) { return {seed, torch::tensor(step, torch::kInt64)}; }

struct Case {
  const char* name;
  ModelConfig (*config)();
};

class ModelDropout : public testing::TestWithParam<Case> {
 protected:
  ModelDropout() : model_(make_model(GetParam().config(), 3)), ids_(torch::arange(40) * 7 % 200), labels_(torch::arange(40) % 200) {}
  Tensor hidden(const ops::Draws& draws) {
    const torch::NoGradGuard no_grad;
    return model_->forward(ids_, rows_, draws);
  }
  std::vector<Tensor> gradients(const ops::Draws& draws) {
    model_->zero_grad();
    model_->loss(ids_, labels_, rows_, -1, draws).backward();
    std::vector<Tensor> all;
    for (const Tensor& parameter : model_->parameters()) all.push_back(parameter.grad().clone());
    return all;
  }

  std::shared_ptr<LanguageModel> model_;
  Tensor ids_, labels_;
  Sequences rows_ = Sequences::equal(2, 20);
};

ModelConfig with_mixer(const char* type) {
  ModelConfig config = small(0);
  config.layers = {"mixer", "mixer"};
  config.mixers = {
      {"mixer", Config(Config::Table{{"type", Config(std::string(type))}, {"heads", Config(int64_t{2})}, {"dropout", Config(0.2)}})}};
  return config;
}

INSTANTIATE_TEST_SUITE_P(Of, ModelDropout,
                         testing::Values(Case{"embedding", [] { return small(0.2); }},
                                         Case{"attention", [] { return with_mixer("attention"); }},
                                         Case{"window", [] { return with_mixer("sliding_window"); }}),
                         [](const auto& given) { return given.param.name; });

TEST_P(ModelDropout, FollowsSeedAndStepAlone) {
  model_->train();
  const Tensor first = hidden(draws_of(1, 5));
  torch::manual_seed(99);  // another thread may have used the generator
  EXPECT_TRUE(torch::equal(hidden(draws_of(1, 5)), first));
  EXPECT_FALSE(torch::equal(hidden(draws_of(1, 6)), first));
  EXPECT_FALSE(torch::equal(hidden(draws_of(2, 5)), first));
  model_->eval();
  const Tensor whole = hidden({});
  EXPECT_TRUE(torch::equal(hidden(draws_of(1, 5)), whole));
  EXPECT_FALSE(torch::equal(whole, first));
}

TEST_P(ModelDropout, IsTheSameWhereActivationsAreComputedAgain) {
  model_->train();
  const auto kept = gradients(draws_of(1, 5)), other = gradients(draws_of(1, 6));
  model_->set_checkpoint_activations(true);
  const auto again = gradients(draws_of(1, 5));
  bool differs = false;
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(torch::equal(kept[i], again[i])) << i;
    differs = differs || !torch::equal(kept[i], other[i]);
  }
  EXPECT_TRUE(differs);
}

TEST_P(ModelDropout, WithNothingToDrawFromIsRefused) {
  model_->train();
  const auto refused = [](const auto& call) { EXPECT_THAT(message_of<Error>(call), HasSubstr("(ops::Draws), or call eval()")); };
  refused([&] { model_->forward(ids_, rows_); });
  refused([&] { model_->loss(ids_, labels_, rows_); });
  const torch::NoGradGuard no_grad;
  ModelState state = model_->make_state(1);
  const Tensor slots = torch::zeros({1}, torch::kInt64);
  refused([&] { model_->prefill(ids_, Sequences::equal(1, 40), state, slots); });
  refused([&] { model_->step(ids_.slice(0, 0, 1), state, slots); });
  model_->eval();
  model_->prefill(ids_, Sequences::equal(1, 40), state, slots);
  model_->step(ids_.slice(0, 0, 1), state, slots);
}

// Layers with the same weights and the same input drop different pairs.
TEST(Dropout, OfALayersAttentionIsItsOwn) {
  const Config options(Config::Table{{"heads", Config(int64_t{2})}, {"dropout", Config(0.3)}});
  const Tensor x = torch::randn({24, 16});
  const Pass pass(Sequences::equal(2, 12), draws_of(4, 2));
  std::vector<Tensor> outputs;
  for (const int64_t layer : {0, 0, 1}) {
    torch::manual_seed(5);
    outputs.push_back(find_mixer("attention").make(options, {16, layer, 2})->forward(x, pass));
  }
  EXPECT_TRUE(torch::equal(outputs[0], outputs[1]));
  EXPECT_FALSE(torch::equal(outputs[0], outputs[2]));
}

TEST(Dropout, OfAttentionHasARange) {
  for (const double p : {-0.1, 1.0, std::nan("")}) {
    const Config options(Config::Table{{"heads", Config(int64_t{2})}, {"dropout", Config(p)}});
    EXPECT_THAT(message_of<UsageError>([&] {
                  find_mixer("attention").make(options, {16, 0, 2});
                }),
                HasSubstr("attention: dropout must be 0 to below 1"));
  }
}

TEST(MakeModel, DrawsWhatTheConstructorDrawsAfterTheSeed) {
  torch::manual_seed(7);
  const LanguageModel constructed(small(0));
  torch::randn({3});  // the second normal number of a pair is cached for the next draw, unless a seed is set
  const auto made = make_model(small(0), 7);
  const auto wanted = constructed.named_parameters();
  for (const auto& item : made->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), wanted[item.key()])) << item.key();
}

TEST(MakeModel, DrawsTheSameOnManyThreads) {
  std::vector<std::shared_ptr<LanguageModel>> alone, together(8);
  for (int64_t seed = 0; seed < 8; ++seed) alone.push_back(make_model(small(0), seed));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) threads.emplace_back([&together, i] { together[i] = make_model(small(0), static_cast<int64_t>(i)); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 8; ++i) {
    const auto wanted = alone[i]->named_parameters();
    for (const auto& item : together[i]->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), wanted[item.key()])) << item.key();
  }
}

}  // namespace dropout_test
}  // namespace based
