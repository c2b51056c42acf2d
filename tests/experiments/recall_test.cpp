// Planning, training and measurement of a recall experiment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/experiments/experiment.h"
#include "based/experiments/recall_eval.h"
#include "based/experiments/recall_figures.h"
#include "based/experiments/report.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace recall_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string small = R"(
kind = "recall"
[task]
vocab_size = 32
train = [{length = 16, pairs = 2, examples = 72}]
test = [{length = 16, pairs = 2, examples = 40}, {length = 24, pairs = 2, examples = 20}]
[training]
batch = 16
epochs = 2
learning_rates = [1e-2, 1e-3]
[optimizer]
min_learning_rate = 0.0
[model]
d_model = 16
mlp = "none"
norm = "layer_norm"
layers = ["base_conv", "mixer"]
[[series]]
name = "Based"
model.mixers.mixer = {type = "taylor_attention", heads = 1, feature_dim = [2, "= d_model / 4"]}
[[series]]
name = "attention"
model.mixers.mixer = {type = "attention", heads = 1, rotary_dim = 0}
learning_rates = [3e-3]
[series.optimizer]
weight_decay = 0.0
[scale.half]
only = ["attention"]
task.vocab_size = 16
[[scale.half.series]]
name = "attention"
model.d_model = 8
)";

class RecallExperimentTest : public testing::Test {
 protected:
  ExperimentFile read(const std::vector<std::string>& set = {}, const std::string& scale = "", const std::string& text = small) {
    write_file_atomic(folder_.file("e.toml"), text);
    return read_experiment(folder_.file("e.toml"), scale, set);
  }
  std::string refusal(const std::vector<std::string>& set, const std::string& scale = "", const std::string& text = small) {
    return message_of<UsageError>([&] { read(set, scale, text); });
  }
  std::string key(const ExperimentFile& file, size_t run) { return run_key(*file.kind, file.runs()[run], torch::kCPU); }
  TemporaryFolder folder_;
};

TEST_F(RecallExperimentTest, PlansEveryPointWithEveryRateAndSeed) {
  const ExperimentFile file = read({"training.seeds=[3,4]"});
  std::vector<std::string> names;
  for (const PlannedRun& run : file.runs()) names.push_back(run_name(run));
  EXPECT_THAT(names, ElementsAre("Based feature_dim=2, learning rate 0.01, seed 3", "Based feature_dim=2, learning rate 0.01, seed 4",
                                 "Based feature_dim=2, learning rate 0.001, seed 3", "Based feature_dim=2, learning rate 0.001, seed 4",
                                 "Based feature_dim=4, learning rate 0.01, seed 3", "Based feature_dim=4, learning rate 0.01, seed 4",
                                 "Based feature_dim=4, learning rate 0.001, seed 3", "Based feature_dim=4, learning rate 0.001, seed 4",
                                 "attention, learning rate 0.003, seed 3", "attention, learning rate 0.003, seed 4"));
  EXPECT_EQ(file.runs()[0].rate->steps, 10) << "five batches an epoch, the last one of 8";
  EXPECT_THAT(config_of(file.runs()[8]).to_json(-1), HasSubstr("\"weight_decay\":0.0"));
  EXPECT_THAT(config_of(file.runs()[0]).to_json(-1), Not(HasSubstr("weight_decay")));
}

TEST_F(RecallExperimentTest, AScaleIsLaidOverTheRest) {
  const ExperimentFile file = read({}, "half");
  ASSERT_EQ(file.runs().size(), 1U);
  EXPECT_EQ(file.runs()[0].rate->series, "attention");
  EXPECT_THAT(config_of(file.runs()[0]).to_json(-1), HasSubstr("\"d_model\":8,\"vocab_size\":16"));
  EXPECT_NE(key(file, 0), key(read(), 4));
  EXPECT_THAT(refusal({}, "tiny"), HasSubstr("e.toml has no table [scale.tiny]"));
  EXPECT_THAT(refusal({}, "half", std::string(small) + "learning_rate = [1.0]"), HasSubstr("unknown key 'learning_rate'"));
  EXPECT_THAT(refusal({}, "b", small + "[scale.b]\nonly = [\"Bsed\"]"), HasSubstr("there is no series 'Bsed'; did you mean 'Based'?"));
}

TEST_F(RecallExperimentTest, AKeyNamesAllThatDecidesARunAndNothingElse) {
  const std::string before = key(read(), 0);
  EXPECT_EQ(key(read({"title=\"x\"", "series.0.name=\"y\"", "model.norm_eps=1e-5", "model.mixers.unused={type=\"attention\"}"}), 0), before)
      << "names, defaults that are written down, mixers that no layer has";
  EXPECT_EQ(key(read({"training.learning_rates=[1e-2]"}), 0), before) << "other rates are other runs";
  for (const char* set : {"task.seed=1", "task.vocab_size=34", "task.test.0.examples=41", "training.epochs=3",
                          "training.precision=\"tf32\"", "training.seeds=[1]", "training.learning_rates=[2e-2]", "optimizer.clip=2.0",
                          "model.d_model=32", "series.0.model.mixers.mixer.bias=true"}) {
    EXPECT_NE(key(read({set}), 0), before) << set;
  }
  const ExperimentFile file = read();
  EXPECT_NE(run_key(*file.kind, file.runs()[0], torch::kCUDA), before);
  const auto raised = std::make_shared<PlannedRate>(*file.runs()[0].rate);
  raised->versions.set("mixers.taylor_attention", Config(int64_t{2}));
  std::vector<PlannedRun> runs;
  add_runs(runs, raised, {0});
  EXPECT_NE(run_key(*file.kind, runs[0], torch::kCPU), before);
}

// Stored results are found by this hash. A new key whose default does not change the runs must not change it.
TEST_F(RecallExperimentTest, AKeyStaysWhatItWas) {
  EXPECT_EQ(key(read(), 0), "f136bceaf61974a25f74630bb5cd10c6")
      << "results that users have kept are no longer found; if this change is meant, put the new hash here";
}

TEST_F(RecallExperimentTest, WhatCannotRunIsWrongUsage) {
  const std::map<std::string, std::string> says{
      {"kind=\"recal\"", "there is no kind of experiment 'recal'; there are: recall"},
      {"model.d_model=[]", "model.d_model is an empty list"},
      {"model.d_model=[16,16]", "two runs are the same, Based d_model=16 feature_dim=2, learning rate 0.01, seed 0 and Based d_model=16"},
      {"series.0.model.mixers.mixer.feature_dim=[\"a\"]", "series 'Based': feature_dim=a: "},
      {"series.0.model.mixers.mixer.feature_dimm=4", "unknown key 'feature_dimm'"},
      {"series.1.name=\"Based\"", "two [[series]] have the name 'Based'"},
      {"series.0.learning_rates=[1e-2,1e-2]", "two runs are the same"},
      {"training.seeds=[]", "training.seeds must not be empty"},
      {"training.learning_rates=[]", "training.learning_rates must not be empty"},
      {"training.learning_rates=[1e-3,1e300]", "learning_rate must be above 0 and at most 1e6"},
      {"optimizer.learning_rate=1e-3", "the rates are training.learning_rates"},
      {"training.epochs=4611686018427387904", "must be below 2^31 steps"},
      {"training.precision=\"fp16\"", "training.precision must be fp32, tf32 or bf16"},
      {"score=\"first\"", "score must be all or last, got 'first'"},
      {"task.train.0.pairs=100", "task.train[0]: mqar: pairs must be from 1 to a quarter"},
      {"task.compat=\"zology\"", "compat must be 'none' or 'zoology'"},
      {"task.test=[]", "task.train and task.test each need at least one segment"},
      {"series=[]", "at least one [[series]]"},
      {"model=5", "'model' must be a table, not the integer 5"},
      {"model.max_positions=8", "examples of 24 tokens are more than model.max_positions = 8"}};
  for (const auto& [setting, message] : says) EXPECT_THAT(refusal({setting}), HasSubstr(message)) << setting;
}

TEST_F(RecallExperimentTest, ZoologysDataGoOnFromTrainToTest) {
  RecallTask task;
  task.vocab_size = 64;
  task.compat = "zoology";
  task.seed = 5;
  task.train = {{32, 4, 6}, {32, 2, 5}};
  task.test = {{16, 2, 3}};
  const ZoologySeeds seeds = zoology_segment_seeds(5, 2, 1);
  std::mt19937 fillers(5);
  std::vector<uint64_t> hashes;
  for (const auto& [seed, segment] :
       {std::pair{seeds.train[0], task.train[0]}, {seeds.train[1], task.train[1]}, {seeds.test[0], task.test[0]}}) {
    MqarConfig config;
    config.vocab_size = 64, config.length = segment.length, config.pairs = segment.pairs, config.examples = segment.examples;
    config.seed = seed;
    hashes.push_back(make_zoology_mqar(config, fillers).hash());
  }
  const auto [train, test] = make_recall_segments(task);
  EXPECT_EQ(train[0].hash(), hashes[0]);
  EXPECT_EQ(train[1].hash(), hashes[1]);
  EXPECT_EQ(test[0].hash(), hashes[2]);
  const RecallData data(make_recall_segments(task), torch::kCPU);
  ASSERT_EQ(data.train().size(), 2U);
  EXPECT_EQ(data.train()[1].labels, 2);
  EXPECT_EQ(data.test()[0].inputs.sizes(), (std::vector<int64_t>{3, 16}));
  task.seed = 6;
  EXPECT_NE(RecallData(make_recall_segments(task), torch::kCPU).hash(), data.hash());
}

MqarData some_examples() {
  MqarConfig config;
  config.vocab_size = 32;
  config.length = 16;
  config.pairs = 2;
  config.examples = 9;
  return make_mqar(config);
}

ModelConfig some_model() {
  ModelConfig model;
  model.vocab_size = 32;
  model.d_model = 16;
  model.layers = {"base_conv", "gated_conv"};
  return model;
}

TEST(RecallEval, CountsLabelsOnly) {
  // A model that always predicts token 0 has a recall of 0.
  LanguageModel model(some_model());
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model.parameters()) parameter.zero_();
  auto segment = RecallData::on_device(some_examples(), torch::kCPU);
  EXPECT_EQ(measure_recall(model, {segment}, 4).mean, 0);
  segment.targets.masked_fill_(segment.targets != kNoLabel, 0);
  EXPECT_EQ(measure_recall(model, {segment}, 4).mean, 1);
}

TEST(RecallEval, WhatIsNotFiniteIsAnError) {
  LanguageModel model(some_model());
  const torch::NoGradGuard no_grad;
  model.parameters()[0].fill_(std::nan(""));
  EXPECT_THROW(measure_recall(model, {RecallData::on_device(some_examples(), torch::kCPU)}, 4), Error);
}

// The runs of a point share their common data, because there may be millions of runs.
TEST_F(RecallExperimentTest, AKeyIsAHashOfTheRunsWholeConfig) {
  const ExperimentFile file = read({"training.seeds=[3,4]"});
  ASSERT_EQ(file.runs()[0].rate, file.runs()[1].rate);
  for (const PlannedRun& run : file.runs()) {
    const Config all(Config::Table{{"kind", Config(std::string("recall"))},
                                   {"device", Config(std::string("cuda"))},
                                   {"versions", run.rate->versions},
                                   {"config", config_of(run)}});
    const std::string text = all.to_json(-1);
    EXPECT_EQ(run_key(*file.kind, run, torch::kCUDA), xxh3_128(std::as_bytes(std::span(text))).hex());
  }
}

// The losses with which the results were stored. On another CPU they may differ by rounding, but not by more.
TEST_F(RecallExperimentTest, ARunComesToWhatItCameTo) {
  const ExperimentFile file = read({"training.shuffle=true"});
  const auto data = file.experiment->load(torch::kCPU);
  const std::vector<double> losses{3.38881, 3.38386, 3.42365};
  for (size_t run = 0; run < losses.size(); ++run) {
    const auto outcome = file.experiment->run(run * 2, *data, {});
    ASSERT_TRUE(outcome);
    double loss = 0;
    config_detail::read(*outcome->find("loss"), loss, "loss");
    EXPECT_NEAR(loss, losses[run], 2e-3) << "if this change is meant, raise the version: mqar_version, recall_version, or the mixer's in "
                                            "based/experiments/versions.cpp; then put the new number here";
  }
}

TEST_F(RecallExperimentTest, BrainFloatsTrainAsFloatsDo) {
  const auto loss_of = [&](const char* precision) {
    const ExperimentFile file = read({"training.shuffle=true", std::string("training.precision=\"") + precision + '"'});
    const auto outcome = file.experiment->run(0, *file.experiment->load(torch::kCPU), {});
    double loss = 0;
    config_detail::read(*outcome->find("loss"), loss, "loss");
    return loss;
  };
  const double in_fp32 = loss_of("fp32"), in_bf16 = loss_of("bf16");
  EXPECT_NEAR(in_bf16, in_fp32, 0.05);
  EXPECT_NE(in_bf16, in_fp32);
}

StoredRun stored_run(const ExperimentFile& file, size_t index, double accuracy, torch::DeviceType device = torch::kCPU) {
  const PlannedRun& run = file.runs()[index];
  StoredRun stored;
  stored.key = run_key(*file.kind, run, device);
  stored.kind = "recall", stored.device = device_name(device);
  stored.learning_rate = run.rate->learning_rate, stored.seed = run.seed;
  stored.config = config_of(run), stored.versions = run.rate->versions;
  if (accuracy < 0) {
    stored.failed = "diverged";
  } else {
    const std::vector<double> segments{accuracy * 1.1, accuracy * 0.8};  // segments of 40 and of 20 examples
    stored.outcome = Config(Config::Table{{"accuracy", Config(accuracy)},
                                          {"segments", write_config(segments)},
                                          {"by_epoch", write_config(std::vector<std::vector<double>>{{0, 0}, segments})},
                                          {"loss", Config(1.0)},
                                          {"epochs", Config(int64_t{2})},
                                          {"state_bytes", Config(static_cast<int64_t>(1000 * (index + 1)))},
                                          {"parameters", Config(run.rate->parameters)},
                                          {"data_hash", Config(std::string(32, '0'))}});
  }
  return stored;
}

TEST_F(RecallExperimentTest, APointIsTheBestOfItsRatesByTheMeanOverSeeds) {
  const ExperimentFile file = read({"training.seeds=[3,4]"});
  ResultsFolder results(folder_.file("results"));
  results.make();
  // The second point has no results, and the third has a failed seed.
  const std::vector<std::pair<size_t, double>> runs{{0, 0.9}, {1, 0.1}, {2, 0.6}, {3, 0.7}, {8, 0.8}, {9, -1}};
  for (const auto& [index, accuracy] : runs) results.write(stored_run(file, index, accuracy));
  const Report report = make_report(file, results);
  ASSERT_EQ(report.points.size(), 3U);
  EXPECT_EQ(report.points[0].learning_rate, 1e-3);
  EXPECT_DOUBLE_EQ(report.points[0].score, 0.65);
  EXPECT_EQ(report.points[0].low, 0.6);
  EXPECT_EQ(report.points[0].high, 0.7);
  EXPECT_TRUE(report.points[1].best.empty());
  EXPECT_EQ(report.points[2].failed, 1);
  EXPECT_EQ(report.points[2].score, 0.8);
  EXPECT_THAT(report_lines(file, report).back(), HasSubstr("5 of 10 runs are done, 1 failed, 4 missing"));
  const std::string table = file.experiment->table(report.points);
  EXPECT_THAT(table, HasSubstr("| Based | feature_dim=2 | 0.6500 (0.6000 to 0.7000) | 0.7150 | 0.5200 | 0.00100 | 3000 |"));
  EXPECT_THAT(table, HasSubstr("| Based | feature_dim=4 | - | "));
  const auto figures = file.experiment->figures(report.points);
  ASSERT_EQ(figures.size(), 3U);
  const PlotSeries &based = figures[0].plot.series[0], &frontier = figures[0].plot.series.back();
  EXPECT_TRUE(frontier.backdrop);
  ASSERT_EQ(frontier.points.size(), 4U);
  EXPECT_EQ(frontier.points[1].first, 9000);
  EXPECT_DOUBLE_EQ(frontier.points[1].second, 0.65);
  EXPECT_EQ(frontier.points[2].second, 0.8);
  EXPECT_EQ(based.label, "Based");
  ASSERT_EQ(based.bars.size(), 1U);
  EXPECT_EQ(based.bars[0].low, 0.6);
}

TEST_F(RecallExperimentTest, OfTwoDevicesTheGpusResultIsShown) {
  const ExperimentFile file = read();
  ResultsFolder results(folder_.file("results"));
  results.make();
  results.write(stored_run(file, 0, 0.1));
  EXPECT_EQ(make_report(file, results).points[0].score, 0.1);
  results.write(stored_run(file, 0, 0.2, torch::kCUDA));
  EXPECT_EQ(make_report(file, results).points[0].score, 0.2);
}

TEST(RecallTable, CountsStateAsThePaperDoes) {
  ModelConfig model;
  model.d_model = 64;
  model.layers = {"base_conv", "mixer"};
  const auto elements = [&](const std::string& toml) {
    model.mixers["mixer"] = *Config::parse_toml("mixer = " + toml, "test").find("mixer");
    return paper_state_elements(model, 1024) - 3 * 64;
  };
  EXPECT_EQ(elements("{type = \"attention\", heads = 1}"), 2 * 1024 * 64);
  EXPECT_EQ(elements("{type = \"sliding_window\", heads = 1, window = 16}"), 2 * 16 * 64);
  EXPECT_EQ(elements("{type = \"taylor_attention\", heads = 1, feature_dim = 16}"), 273 * 65);
  EXPECT_LT(elements("{type = \"gated_conv\"}"), 0) << "unknown";
}

}  // namespace recall_test
}  // namespace based
