#include "based/experiments/recall_run.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <atomic>
#include <thread>

#include "based/core/files.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace recall_run_test {

RecallTask small_task() {
  RecallTask task;
  task.vocab_size = 64;
  task.train = {{32, 2, 130}, {32, 4, 64}};  // batches of 64, 64, 2 and 64
  task.test = {{32, 2, 40}, {64, 4, 40}};
  return task;
}

Config mixer_of(const std::string& type) {
  Config mixer{Config::Table{}};
  mixer.set("type", Config(type));
  mixer.set("heads", Config(int64_t{1}));
  if (type == "taylor_attention") {
    mixer.set("feature_dim", Config(int64_t{8}));
    return mixer;
  }
  if (type == "base_conv") return Config(Config::Table{{"type", Config(type)}});
  mixer.set("rotary_dim", Config(int64_t{0}));
  if (type == "sliding_window") mixer.set("window", Config(int64_t{8}));
  if (type == "attention") mixer.set("dropout", Config(0.1));
  return mixer;
}

RecallRun small_run(const std::string& mixer, int64_t seed) {
  RecallRun run;
  run.model.d_model = 32;
  run.model.vocab_size = 64;
  run.model.norm = "layer_norm";
  run.model.mlp = "identity";
  run.model.embedding_dropout = 0.1;
  run.model.layers = {"base_conv", "mixer"};
  run.model.mixers["mixer"] = mixer_of(mixer);
  run.optimizer.learning_rate = 1e-2;
  run.optimizer.min_learning_rate = 0;
  run.optimizer.warmup = 0;
  run.optimizer.clip = 0;
  run.optimizer.schedule = "epoch";
  run.training.epochs = 3;
  run.training.batch = 64;
  run.training.shuffle = seed % 2 == 1;
  run.seed = seed;
  return run;
}

struct Trained {
  RecallOutcome outcome;
  std::string weights;  // contents of the model's file
};

Trained train(const RecallRun& run, const RecallData& data, const std::string& folder) {
  RecallHooks hooks;
  hooks.trained = [&](const LanguageModel& model, const RecallOutcome&) { save_model(model, folder); };
  Trained trained{train_recall(run, data, hooks), ""};
  trained.weights = read_file(folder + "/model.safetensors");
  return trained;
}

class RecallRunsOn : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  torch::Device device() const { return torch::Device(GetParam()); }
};

// Eight runs at once, and more after them: a run that ends frees memory and streams while others continue and the next one is recorded.
TEST_P(RecallRunsOn, OneAmongEightHasTheBitsOfTheRunAlone) {
  const TemporaryFolder folder;
  const RecallData data(make_recall_segments(small_task()), device());
  std::vector<RecallRun> runs;
  for (const int64_t seed : {3, 4, 5})
    for (const char* mixer : {"attention", "taylor_attention", "sliding_window", "taylor_attention", "attention", "sliding_window",
                              "base_conv", "taylor_attention"}) {
      runs.push_back(small_run(mixer, seed));
      if (seed == 5) runs.back().model.d_model = 128;  // the same kernels, with more shared memory
      runs.back().seed += 10 * static_cast<int64_t>(runs.size());
    }
  std::vector<Trained> together(runs.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.emplace_back([&] {
      for (size_t i = next++; i < runs.size(); i = next++) together[i] = train(runs[i], data, folder.file("together" + std::to_string(i)));
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(i);
    const Trained alone = train(runs[i], data, folder.file("alone" + std::to_string(i)));
    EXPECT_TRUE(alone.weights == together[i].weights);
    EXPECT_EQ(alone.outcome.loss, together[i].outcome.loss);
    EXPECT_EQ(alone.outcome.by_epoch, together[i].outcome.by_epoch);
  }
  EXPECT_FALSE(together[1].weights == together[3].weights);
}

TEST_P(RecallRunsOn, EveryExampleIsTrainedOnAndEveryEpochIsTested) {
  const RecallData data(make_recall_segments(small_task()), device());
  const RecallRun run = small_run("taylor_attention", 4);
  RecallHooks hooks;
  int64_t steps = 0;
  hooks.progress = [&](int64_t, int64_t all_steps, double, double) { steps = all_steps; };
  const RecallOutcome outcome = train_recall(run, data, hooks);
  EXPECT_EQ(steps, 3 * 4);
  EXPECT_EQ(outcome.epochs, 3);
  ASSERT_EQ(outcome.by_epoch.size(), 3u);
  EXPECT_EQ(outcome.by_epoch.back(), outcome.segments);
  ASSERT_EQ(outcome.segments.size(), 2u);
  EXPECT_NEAR(outcome.accuracy, (outcome.segments[0] + outcome.segments[1]) / 2, 1e-12);
}

TEST_P(RecallRunsOn, EndsAfterTheEpochWhoseAccuracyIsAboveTheBound) {
  const RecallData data(make_recall_segments(small_task()), device());
  RecallRun run = small_run("taylor_attention", 4);
  run.training.stop_above = -1;
  const RecallOutcome outcome = train_recall(run, data, {});
  EXPECT_EQ(outcome.epochs, 1);
  EXPECT_FALSE(outcome.interrupted);
}

INSTANTIATE_TEST_SUITE_P(Devices, RecallRunsOn, ::testing::Values("cpu", "cuda"), [](const auto& device) { return device.param; });

TEST(RecallRun, LearnsToRecall) {
  RecallTask task = small_task();
  task.train = {{32, 2, 12800}};
  task.test = {{32, 2, 200}};
  RecallRun run = small_run("taylor_attention", 4);
  run.model.embedding_dropout = 0;
  run.training.epochs = 2;
  run.training.stop_above = 0.9;
  EXPECT_GT(train_recall(run, RecallData(make_recall_segments(task), torch::kCPU), {}).accuracy, 0.9);
}

TEST(RecallRun, AnUnknownPrecisionIsRefused) {
  RecallRun run = small_run("taylor_attention", 4);
  run.training.precision = "fp8";
  EXPECT_THROW(train_recall(run, RecallData(make_recall_segments(small_task()), torch::kCPU), {}), UsageError);
}

}  // namespace recall_run_test
}  // namespace based
