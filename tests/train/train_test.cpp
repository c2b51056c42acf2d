#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>

#include "based/core/json.h"
#include "based/data/tokenizer.h"
#include "based/models/weights.h"
#include "based/train/text_run.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace {

struct TwoParameters : torch::nn::Module {
  Tensor matrix, vector;
  TwoParameters() {
    matrix = register_parameter("matrix", torch::tensor({{1.0, -2.0}, {0.5, 3.0}}, torch::kDouble));
    vector = register_parameter("vector", torch::tensor({1.0, 2.0}, torch::kDouble));
  }
};

TEST(AdamW, FollowsTheFormulaAndDecaysMatricesOnly) {
  TwoParameters module;
  OptimizerOptions options;
  options.weight_decay = 0.1;
  AdamW optimizer(module, options);
  Tensor p = module.matrix.detach().clone(), v = module.vector.detach().clone();
  std::vector<Tensor> m{torch::zeros_like(p), torch::zeros_like(v)}, s{torch::zeros_like(p), torch::zeros_like(v)};
  torch::manual_seed(1);
  for (int step = 1; step <= 4; ++step) {
    const Tensor g = torch::randn({2, 2}, torch::kDouble), h = torch::randn({2}, torch::kDouble);
    module.matrix.mutable_grad() = g.clone();
    module.vector.mutable_grad() = h.clone();
    optimizer.step(0.01);
    const auto update = [&](Tensor& x, const Tensor& gradient, size_t i, double decay) {
      x = x * (1 - 0.01 * decay);
      m[i] = 0.9 * m[i] + 0.1 * gradient;
      s[i] = 0.95 * s[i] + 0.05 * gradient * gradient;
      x = x - 0.01 * (m[i] / (1 - std::pow(0.9, step))) / ((s[i] / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
    };
    update(p, g, 0, 0.1);
    update(v, h, 1, 0);
    EXPECT_LT((module.matrix - p).abs().max().item<double>(), 1e-12);
    EXPECT_LT((module.vector - v).abs().max().item<double>(), 1e-12);
  }
}

TEST(AdamW, ClipsTheGlobalNorm) {
  TwoParameters module;
  AdamW optimizer(module, {});
  module.matrix.mutable_grad() = torch::full({2, 2}, 3.0, torch::kDouble);
  module.vector.mutable_grad() = torch::full({2}, 4.0, torch::kDouble);
  const double norm = std::sqrt(4 * 9 + 2 * 16.0);
  EXPECT_NEAR(optimizer.clip_gradients(), norm, 1e-12);
  EXPECT_NEAR(module.matrix.grad()[0][0].item<double>(), 3 / (norm + 1e-6), 1e-12);
}

TEST(LearningRate, RisesLinearlyThenFollowsACosine) {
  OptimizerOptions options;
  options.learning_rate = 1;
  options.min_learning_rate = 0.1;
  options.warmup = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(options, 0, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 9, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10, 100), 1);
  EXPECT_NEAR(learning_rate(options, 55, 100), 0.55, 1e-12);
  EXPECT_LT(learning_rate(options, 99, 100), 0.11);
}

std::string write_text(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox jumps over the lazy dog, " + std::to_string(i % 7) + " times.\n";
  std::ofstream(folder.file("text.txt")) << text;
  return folder.file("text.txt");
}

TextRun small_run(const TemporaryFolder& folder) {
  TextRun run;
  run.model = Config(Config::Table{{"preset", Config(std::string("based-tiny"))}});
  run.data.train = write_text(folder);
  run.data.tokenizer = "bytes";
  run.train.steps = 30;
  run.train.batch = 4;
  run.train.length = 32;
  run.train.evaluate_every = 10;
  run.train.evaluate_batches = 2;
  run.optimizer.learning_rate = 1e-2;
  return run;
}

TEST(TextRun, LearnsAndLeavesAModelThatLoads) {
  const TemporaryFolder folder;
  const TextRunResult result = run_text_training(small_run(folder), folder.file("out"));
  EXPECT_EQ(result.loop.steps, 30);
  EXPECT_FALSE(result.loop.interrupted);
  EXPECT_LT(result.loop.evaluation["loss"].get<double>(), 4.0);  // log(257) = 5.5 at the start
  const LoadedModel loaded = load_model(folder.file("out"));
  for (const auto& item : result.model->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), loaded.model->named_parameters()[item.key()]));
  EXPECT_EQ(make_tokenizer(folder.file("out"))->vocab_size(), 257);
  std::ifstream metrics(folder.file("out/metrics.jsonl"));
  std::string line;
  int64_t lines = 0;
  while (std::getline(metrics, line)) {
    EXPECT_TRUE(parse_json(line, "metrics").contains("step"));
    ++lines;
  }
  EXPECT_EQ(lines, 6);  // 3 logged steps, 3 evaluations
}

TEST(TextRun, TheSameSeedGivesTheSameWeights) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 5;
  const auto one = run_text_training(run, folder.file("a")).model, two = run_text_training(run, folder.file("b")).model;
  run.train.seed = 1;
  const auto other = run_text_training(run, folder.file("c")).model;
  bool differs = false;
  for (const auto& item : one->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), two->named_parameters()[item.key()])) << item.key();
    differs = differs || !torch::equal(item.value(), other->named_parameters()[item.key()]);
  }
  EXPECT_TRUE(differs);
}

TEST(TextRun, ASignalStopsItAfterTheStepAndKeepsTheModel) {
  const TemporaryFolder folder;
  LanguageModel model(find_preset("based-tiny"));
  AdamW optimizer(model, {});
  LoopOptions options;
  options.steps = 1000;
  int64_t saved = -1;
  LoopHooks hooks;
  hooks.batch = [](int64_t step) {
    if (step == 3) std::raise(SIGINT);
    const Tensor ids = torch::arange(16) % 7;
    return Batch{ids, ids, Sequences::equal(1, 16)};
  };
  hooks.checkpoint = [&](int64_t step) { saved = step; };
  const LoopResult result = train_loop(model, optimizer, {}, options, hooks);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(saved, 4);
}

TEST(TextRun, RefusesWhatCannotBeBeforeItWritesAnything) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.length = 1 << 20;
  EXPECT_NE(message_of<Error>([&] { run_text_training(run, folder.file("out")); }).find("too few for train.length"), std::string::npos);
  run = small_run(folder);
  run.data.train = folder.file("missing.txt");
  EXPECT_NE(message_of<Error>([&] { run_text_training(run, folder.file("out")); }).find("missing.txt"), std::string::npos);
  run = small_run(folder);
  run.train.steps = 0;
  EXPECT_THROW(run_text_training(run, folder.file("out")), UsageError);
  EXPECT_FALSE(std::filesystem::exists(folder.file("out")));
}

}  // namespace
}  // namespace based
