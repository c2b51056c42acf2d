#include "based/experiments/mqar_sweep.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/core/temporary_folder.h"

namespace based {
namespace {

MqarSweep small_sweep() {
  return read_config<MqarSweep>(Config::parse_toml(R"(
[task]
vocab_size = 32
train = [{length = 16, pairs = 2, examples = 64}]
test = [{length = 16, pairs = 2, examples = 40}, {length = 24, pairs = 2, examples = 20}]
[run]
batch = 16
learning_rates = [1e-3]
[optimizer]
min_learning_rate = 0.0
[model]
d_model = 16
mlp = "none"
norm = "layer_norm"
layers = ["base_conv", "mixer"]
[[models]]
name = "Based"
model.mixers.mixer = {type = "taylor_attention", heads = 1, feature_dim = [2, 4]}
[[models]]
name = "attention"
model.mixers.mixer = {type = "attention", heads = 1, rotary_dim = 0}
)",
                                                   "test.toml"));
}

TEST(MqarSweep, ListsAreAxesAndLayersAreNot) {
  const auto points = expand_sweep(small_sweep());
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[0].label, "feature_dim=2");
  EXPECT_EQ(points[1].label, "feature_dim=4");
  EXPECT_EQ(points[2].name, "attention");
  EXPECT_EQ(points[0].model.layers.size(), 2U);
  EXPECT_EQ(points[0].model.vocab_size, 32);
}

TEST(MqarSweep, RunsDrawsAndSkipsWhatIsFinished) {
  const TemporaryFolder folder;
  const MqarSweep sweep = small_sweep();
  const auto first = run_sweep(sweep, folder.file("out")).results;
  ASSERT_EQ(first.size(), 3U);
  for (const auto& result : first) {
    EXPECT_EQ(result.segments.size(), 2U);
    EXPECT_NEAR(result.recall, (result.segments[0] * 40 + result.segments[1] * 20) / 60, 1e-12);
  }
  EXPECT_LT(first[0].state_bytes, first[1].state_bytes);
  EXPECT_TRUE(std::filesystem::exists(folder.file("out/figure.svg")));
  const auto written = std::filesystem::last_write_time(folder.file("out/results.jsonl"));
  const SweepOutcome again = run_sweep(sweep, folder.file("out"));
  const auto& second = again.results;
  EXPECT_EQ(again.points, 3);
  EXPECT_EQ(again.reused, 3);
  ASSERT_EQ(second.size(), 3U);
  EXPECT_EQ(std::filesystem::last_write_time(folder.file("out/results.jsonl")), written);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i].recall, second[i].recall);
}

TEST(MqarSweep, RefusesASweepThatCannotRun) {
  MqarSweep sweep = small_sweep();
  sweep.models.clear();
  EXPECT_THROW(expand_sweep(sweep), UsageError);
  sweep = small_sweep();
  sweep.run.batch = 1000;
  EXPECT_THROW(expand_sweep(sweep), UsageError);
  sweep = small_sweep();
  sweep.task.train[0].pairs = 100;
  EXPECT_THROW(expand_sweep(sweep), UsageError);
}

TEST(MqarSweep, RecallOfWhatIsNotFiniteIsAnError) {
  const MqarSweep sweep = small_sweep();
  LanguageModel model(expand_sweep(sweep)[0].model);
  const torch::NoGradGuard no_grad;
  model.parameters()[0].fill_(std::nan(""));
  MqarConfig config;
  config.vocab_size = 32;
  config.length = 16;
  config.pairs = 2;
  config.examples = 8;
  EXPECT_THROW(measure_recall(model, {make_mqar(config)}, 4), Error);
}

TEST(MqarSweep, RecallCountsLabelsOnly) {
  // A model that always says token 0 recalls nothing; the count of labels is what divides.
  const MqarSweep sweep = small_sweep();
  LanguageModel model(expand_sweep(sweep)[0].model);
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model.parameters()) parameter.zero_();
  MqarConfig config;
  config.vocab_size = 32;
  config.length = 16;
  config.pairs = 2;
  config.examples = 8;
  EXPECT_EQ(measure_recall(model, {make_mqar(config)}, 4).mean, 0);
}

}  // namespace
}  // namespace based
