// Planning, interruption and results of an experiment on language models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/text_table.h"
#include "based/experiments/language_run.h"
#include "based/experiments/language_table.h"
#include "based/experiments/report.h"
#include "based/experiments/sweep.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace language_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string lines_of(int count, const std::string& before) {
  std::string text;
  for (int i = 0; i < count; ++i) text += before + " the quick brown fox jumps over the lazy dog, " + std::to_string(i % 7) + " times.\n";
  return text;
}

class LanguageExperimentTest : public testing::Test {
 protected:
  LanguageExperimentTest() {
    write_file_atomic(folder_.file("text.txt"), lines_of(200, "here"));
    write_file_atomic(folder_.file("other.txt"), lines_of(20, "there"));
  }
  std::string config() const {
    return R"(
kind = "language"
base = "Based"
learning_rates = [1e-2]
seeds = [1]
[data]
train = ")" +
           folder_.file("text.txt") + R"("
tokenizer = "bytes"
[evaluation]
held_out = [")" +
           folder_.file("text.txt") + "\", \"" + folder_.file("other.txt") + R"("]
thresholds = [8, 100000]
[train]
steps = 12
batch = 4
length = 32
evaluate_every = 4
evaluate_batches = 2
log_every = 3
[checkpoint]
every = 100
[model]
d_model = 16
mlp_width = 16
layers = ["mixer", "window"]
mixers.window = {type = "sliding_window", heads = 2, window = 8}
[[series]]
name = "Based"
model.mixers.mixer = {type = "taylor_attention", heads = 2, feature_dim = 4}
[[series]]
name = "A & b_c"
model.mixers.mixer = {type = "attention", heads = 2}
)";
  }
  ExperimentFile read(const std::vector<std::string>& set = {}) const {
    write_file_atomic(folder_.file("e.toml"), config());
    return read_experiment(folder_.file("e.toml"), "", set);
  }
  std::string refusal(const std::vector<std::string>& set) const {
    return message_of<UsageError>([&] { read(set); });
  }
  static std::string key(const ExperimentFile& file, size_t run) { return run_key(*file.kind, file.runs()[run], torch::kCPU); }

  // Executes the first run in a folder. After `stop_at` steps it is interrupted; 0: never.
  std::optional<Config> run(const ExperimentFile& file, const std::string& folder, int64_t stop_at = 0) const {
    RunHooks hooks;
    hooks.folder = folder_.file(folder);
    hooks.progress = [&](int64_t step, int64_t, double, double) {
      if (step == stop_at) std::raise(SIGINT);
    };
    return file.experiment->run(0, *file.experiment->load(torch::kCPU), hooks);
  }
  // The outcome without the run's cost.
  static std::string result_of(const Config& outcome) {
    Config::Table kept;
    for (const auto& member : std::get<Config::Table>(outcome.value()))
      if (member.first != "cost") kept.push_back(member);
    return Config(std::move(kept)).to_json(-1);
  }

  const TemporaryFolder folder_;
};

TEST_F(LanguageExperimentTest, AnInterruptedRunContinuesToTheOutcomeOfAnUninterruptedOne) {
  const ExperimentFile file = read({"checkpoint.every=4"});
  const auto whole = run(file, "whole");
  ASSERT_TRUE(whole);
  EXPECT_FALSE(run(file, "pieces", 5)) << "between two checkpoints";
  EXPECT_FALSE(run(file, "pieces", 9));
  const auto continued = run(file, "pieces");
  ASSERT_TRUE(continued);
  EXPECT_EQ(result_of(*continued), result_of(*whole));
  const auto outcome = read_config<LanguageOutcome>(*continued);
  EXPECT_EQ(outcome.train_steps, (std::vector<int64_t>{3, 6, 9, 12}));
  EXPECT_EQ(outcome.evaluation_steps, (std::vector<int64_t>{4, 8, 12}));
  EXPECT_EQ(outcome.cost.pieces, 3);
  EXPECT_EQ(outcome.cost.cards, (std::vector<std::string>{"cpu"}));
  const auto again = run(file, "pieces");
  ASSERT_TRUE(again) << "killed after the last checkpoint, before the result was stored";
  EXPECT_EQ(result_of(*again), result_of(*whole));
}

// Results that users have kept are found by versions, not by a hash of the sources.
TEST_F(LanguageExperimentTest, ItsTrainingLossesAreThoseOfThisVersion) {
  const auto outcome = run(read(), "run");
  ASSERT_TRUE(outcome);
  const std::vector<double> losses = read_config<LanguageOutcome>(*outcome).train_loss, wanted{5.1638, 4.6474, 4.3566, 4.2090};
  ASSERT_EQ(losses.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(losses[i], wanted[i], 2e-3) << "if this change is meant, raise the version: language_version, or the mixer's in "
                                            << "based/experiments/versions.cpp";
}

TEST_F(LanguageExperimentTest, ItsFiguresAreThoseOfTheSlices) {
  const ExperimentFile file = read();
  const auto outcome = run(file, "run");
  ASSERT_TRUE(outcome);
  const auto figures = read_config<LanguageOutcome>(*outcome);
  EXPECT_EQ(figures.sets, (std::vector<std::string>{"text.txt", "other.txt"}));
  ASSERT_EQ(figures.tokens.size(), 2U);
  for (const int64_t tokens : figures.tokens) EXPECT_EQ(tokens % 32, 0) << "whole windows";
  EXPECT_LT(figures.ar_share(0), figures.ar_share(1)) << "a higher threshold takes in more";
  EXPECT_GT(figures.ar_share(1), 0);
  for (const size_t i : {0U, 1U}) {
    const double share = figures.ar_share(i), ar = share > 0 ? figures.ar_loss(i) : 0;
    EXPECT_NEAR(share * ar + (1 - share) * figures.other_loss(i), figures.loss, 1e-9);
  }
  file.experiment->check(0, *outcome);
  for (const auto& [name, unused] : std::get<Config::Table>(outcome->value())) {
    Config::Table rest;
    for (const auto& member : std::get<Config::Table>(outcome->value()))
      if (member.first != name) rest.push_back(member);
    EXPECT_THAT(message_of<Error>([&] { file.experiment->check(0, Config(rest)); }), HasSubstr(name)) << "without " << name;
  }
  for (const auto& [name, value] : std::vector<std::pair<std::string, Config>>{{"loss", Config(1e300)},
                                                                               {"parameters", Config(int64_t{7})},
                                                                               {"steps", Config(int64_t{11})},
                                                                               {"order_hash", Config(std::string("x"))},
                                                                               {"tokens", Config(Config::Array{})},
                                                                               {"train_loss", Config(Config::Array{Config(1.0)})}}) {
    Config changed = *outcome;
    changed.set(name, value);
    EXPECT_THAT(message_of<Error>([&] { file.experiment->check(0, changed); }), HasSubstr(name));
  }
}

TEST_F(LanguageExperimentTest, ARunOfOtherTextDoesNotContinue) {
  const ExperimentFile file = read();
  ASSERT_FALSE(run(file, "run", 5));
  write_file_atomic(folder_.file("text.txt"), lines_of(201, "here"));
  EXPECT_THAT(message_of<CannotRun>([&] { run(file, "run"); }), HasSubstr("are not those that the run began with"));
}

TEST_F(LanguageExperimentTest, ASweepKeepsTheBestRateAndRemovesTheUnfinishedState) {
  const ExperimentFile file = read({"learning_rates=[1e-9,1e-2]"});
  ResultsFolder results(folder_.file("results"));
  SweepOptions options;
  options.devices = {torch::kCPU};
  options.unfinished = folder_.file("unfinished");
  options.commit = "abc";
  options.time_limit = 1e-9;
  const SweepOutcome stopped = run_sweep(file, results, options);
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.done, 0);
  options.time_limit = 0;
  const SweepOutcome outcome = run_sweep(file, results, options);
  EXPECT_FALSE(outcome.interrupted);
  EXPECT_EQ(outcome.done, 4);
  EXPECT_EQ(outcome.failed, 0);
  EXPECT_FALSE(path_exists(options.unfinished));
  const Report report = make_report(file, results);
  ASSERT_EQ(report.points.size(), 2U);
  EXPECT_EQ(report.points[0].learning_rate, 1e-2) << "the lowest loss";
  const std::string table = file.experiment->table(report.points);
  EXPECT_THAT(table, AllOf(HasSubstr("All models saw the same tokens in the same order; hash of data and order: seed 1 "),
                           HasSubstr("AR (≤ 100000)"), HasSubstr("(one seed)"), HasSubstr("Card: cpu. Commit: abc."),
                           HasSubstr("| A \\& b_c |"), HasSubstr("other.txt")));
  EXPECT_THAT(file.experiment->latex_table(report.points), HasSubstr("A \\& b\\_c & "));
  std::vector<std::string> names;
  for (const Figure& figure : file.experiment->figures(report.points)) names.push_back(figure.name);
  EXPECT_THAT(names, AllOf(testing::Contains("figure"), testing::Contains("held-out-loss"), testing::Contains("training-loss")));
}

TEST_F(LanguageExperimentTest, AFailedRunKeepsItsStateUntilItIsRepeated) {
  const ExperimentFile file = read({"learning_rates=[1e6]", "optimizer={clip = 0, weight_decay = 0, warmup = 0}", "train.max_bad_steps=1"});
  ResultsFolder results(folder_.file("results"));
  SweepOptions options;
  options.devices = {torch::kCPU};
  options.unfinished = folder_.file("unfinished");
  EXPECT_EQ(run_sweep(file, results, options).failed, 2);
  const std::string failed = path_in(path_in(options.unfinished, key(file, 0)), "failed");
  EXPECT_THAT(read_file(failed), HasSubstr("try a lower learning rate"));
  options.retry = true;
  EXPECT_EQ(run_sweep(file, results, options).failed, 2);
  EXPECT_THAT(read_file(failed), HasSubstr("try a lower learning rate")) << "repeated from the start";
}

TEST_F(LanguageExperimentTest, SeveralRunsAtOnceAreRefused) {
  const ExperimentFile file = read();
  ResultsFolder results(folder_.file("results"));
  SweepOptions options;
  options.devices = {torch::kCPU};
  options.runs_per_device = 2;
  EXPECT_THAT(message_of<UsageError>([&] { run_sweep(file, results, options); }), HasSubstr("start one process for each GPU"));
}

TEST_F(LanguageExperimentTest, AKeyNamesAllThatDecidesARunAndNothingElse) {
  const std::string before = key(read(), 0);
  EXPECT_EQ(key(read({"title=\"x\"", "base=\"\"", "series.0.name=\"y\"", "series.0.note=\"z\"", "series.0.paper={all = 8.65}",
                      "checkpoint.every=1", "seeds=[1,2]", "mixed_cards=true"}),
                0),
            before);
  for (const char* set : {"seeds=[2]", "learning_rates=[2e-2]", "final_rate=0.2", "train.steps=13", "train.accumulate=2",
                          "data.documents=true", "evaluation.thresholds=[8]", "optimizer.clip=2.0", "model.d_model=32",
                          "series.0.train={accumulate = 4}", "series.0.optimizer={beta2 = 0.99}"})
    EXPECT_NE(key(read({set}), 0), before) << set;
}

TEST_F(LanguageExperimentTest, WhatCannotRunIsWrongUsage) {
  const std::map<std::string, std::string> says{
      {"train.device=\"cpu\"", "device: the device is the command's --device"},
      {"train.seed=3", "seed: the seeds are the experiment's seeds"},
      {"optimizer.learning_rate=0.1", "learning_rate: the rates are learning_rates"},
      {"optimizer.min_learning_rate=0.1", "min_learning_rate: the last rate is final_rate times the learning rate"},
      {"series.0.train={seed = 3}", "series 'Based': "},
      {"data.tokenizer=\"bpe\"", "data.tokenizer must be bytes or a tokenizer's folder"},
      {"data.tokenizer=\"gpt2\"", "model.vocab_size must be the size of the tokenizer's vocabulary"},
      {"base=\"Mamba\"", "base = 'Mamba' must be the name of a series with one point"},
      {"series.0.model.d_model=[16,32]", "base = 'Based' must be the name of a series with one point"},
      {"seeds=[]", "seeds must not be empty"},
      {"learning_rates=[]", "learning_rates must not be empty"},
      {"final_rate=2.0", "final_rate must be from 0 to 1"},
      {"evaluation.thresholds=[8,8]", "evaluation.thresholds must be different numbers"},
      {"evaluation.held_out=[\"" + folder_.file("text.txt") + "\", \"" + folder_.file("./text.txt") + "\"]", "text.txt twice"},
      {"train.accumulate=3", "train.batch must be a multiple of train.accumulate"},
      {"series.1.name=\"Based\"", "two [[series]] have the name 'Based'"},
      {"model.max_positions=16", "train.length = 32 is more than model.max_positions = 16"},
      {"nonsense=1", "unknown key 'nonsense'"}};
  for (const auto& [set, message] : says) EXPECT_THAT(refusal({set}), HasSubstr(message)) << set;
}

TEST_F(LanguageExperimentTest, AHeldOutSetThatIsNotThereIsNamed) {
  const ExperimentFile file = read({"evaluation.held_out=[\"" + folder_.file("none") + "\"]"});
  EXPECT_THAT(message_of<Error>([&] { file.experiment->load(torch::kCPU); }),
              HasSubstr(folder_.file("none") + ": no such file or folder; evaluation.held_out names it"));
}

TEST_F(LanguageExperimentTest, TheListOfKeysHasNoneThatIsRefused) {
  std::set<std::string> names;
  for (const FieldHelp& help : read().kind->help()) names.insert(help.name);
  for (const char* refused : {"train.device", "train.seed", "optimizer.learning_rate", "optimizer.min_learning_rate"})
    EXPECT_FALSE(names.contains(refused)) << refused;
  for (const char* key : {"train.steps", "optimizer.weight_decay", "learning_rates"}) EXPECT_TRUE(names.contains(key)) << key;
}

// Points made by hand: loss by seed on one card.
class LanguageTableTest : public testing::Test {
 protected:
  void add(const std::string& series, const std::vector<double>& losses, const std::string& card = "H100",
           const std::string& order = "0123456789abcdef") {
    auto& planned = planned_.emplace_back(std::make_unique<PlannedRate>());
    planned->series = series;
    planned->parameters = 1000;
    PointResult& point = points_.emplace_back();
    point.series = series;
    point.planned = planned.get();
    point.learning_rate = 1e-3;
    for (size_t seed = 0; seed < losses.size(); ++seed) {
      LanguageOutcome outcome;
      outcome.loss = losses[seed];
      outcome.sets = {"set"};
      outcome.tokens = {100};
      outcome.nats = {100 * losses[seed]};
      outcome.ar_tokens = {{10}};
      outcome.ar_nats = {{10.0}};
      outcome.state_bytes = 64;
      outcome.order_hash = order;
      outcome.held_out_hashes = {order};
      outcome.cost.cards = {card};
      outcome.cost.tokens_per_second = 5000;
      auto& run = runs_.emplace_back(std::make_unique<StoredRun>());
      run->seed = static_cast<int64_t>(seed);
      run->outcome = write_config(outcome);
      point.best.push_back(run.get());
    }
  }
  static LanguageSummary summary() {
    LanguageSummary summary;
    summary.title = "Rows";
    summary.base = "base";
    summary.thresholds = {8};
    summary.paper = {{"base", {8.65, 2.07, 9.64}}, {"far", {9.49, 2.29, 10.58}}};
    return summary;
  }

  std::vector<std::unique_ptr<PlannedRate>> planned_;
  std::vector<std::unique_ptr<StoredRun>> runs_;
  std::vector<PointResult> points_;
};

TEST_F(LanguageTableTest, DifferencesArePairedBySeed) {
  const PairedDifference difference = paired_difference({{0, 3.1}, {1, 3.3}, {5, 9.0}}, {{0, 3.0}, {1, 3.1}, {2, 1.0}});
  EXPECT_EQ(difference.pairs, 2U);
  EXPECT_NEAR(difference.mean, 0.15, 1e-12);
  EXPECT_NEAR(difference.error, 0.05, 1e-12) << "deviation 0.0707 of two, over the root of two";
  EXPECT_TRUE(difference.is_resolved());
  EXPECT_FALSE(paired_difference({{0, 3.1}}, {{0, 3.0}}).is_resolved()) << "one pair has no error";
  EXPECT_EQ(paired_difference({{0, 3.1}}, {{1, 3.0}}).pairs, 0U);
}

TEST_F(LanguageTableTest, ADifferenceWithinTwoErrorsIsNotResolved) {
  add("base", {3.000, 3.010, 3.020});
  add("far", {3.100, 3.111, 3.119});
  add("near", {3.004, 3.008, 3.022});
  add("absent", {});
  const std::string table = language_table(summary(), points_);
  EXPECT_THAT(table, AllOf(HasSubstr("| base | 1000 | 64 | 0.001 | 3 | 20.29 |"), HasSubstr("| +0.1000 ± 0.0006 |"),
                           HasSubstr("| +0.0013 ± 0.0018, not resolved |"), HasSubstr("| absent | 1000 | - |")));
  EXPECT_THAT(table, HasSubstr("9.49 / 2.29 / 10.58 | +0.0927 |")) << "the paper's figures, ln(9.49 / 8.65)";
  EXPECT_THAT(table, HasSubstr("(10.0 % of the tokens)"));
  EXPECT_THAT(language_latex_table(summary(), points_), HasSubstr("+0.0013 $\\pm$ 0.0018, not resolved & "));
}

TEST_F(LanguageTableTest, ASliceWithoutTokensHasNoColumns) {
  add("base", {3.0});
  add("other", {3.1});
  for (const auto& run : runs_) {
    LanguageOutcome outcome = read_config<LanguageOutcome>(run->outcome);
    outcome.ar_tokens = {{0}, {10}};
    outcome.ar_nats = {{0.0}, {10.0}};
    run->outcome = write_config(outcome);
  }
  LanguageSummary two = summary();
  two.paper.clear();
  two.thresholds = {8, 1250};
  const std::string table = language_table(two, points_), latex = language_latex_table(two, points_);
  EXPECT_THAT(table, AllOf(Not(HasSubstr("8)")), HasSubstr("AR (≤ 1250)"), HasSubstr("at most 1250 times"), Not(HasSubstr("nan"))));
  EXPECT_THAT(latex, AllOf(Not(HasSubstr("$ 8)")), HasSubstr("1250)")));
  two.thresholds = {8};
  EXPECT_THAT(language_table(two, points_), AllOf(Not(HasSubstr("AR")), HasSubstr("All is a perplexity, exp of the mean nats per token.")));
}

TEST_F(LanguageTableTest, RowsOfTwoCardsAreRefused) {
  add("base", {3.0});
  add("other", {3.1}, "H200");
  EXPECT_THAT(message_of<Error>([&] { language_table(summary(), points_); }),
              AllOf(HasSubstr("those of seed 0 are of 2 (H100: base; H200: other)"), HasSubstr("mixed_cards = true")));
  LanguageSummary mixed = summary();
  mixed.mixed_cards = true;
  EXPECT_THAT(language_table(mixed, points_), HasSubstr("| 5000 (H200) | H200 |"));
}

// A difference is one of two runs with one seed.
TEST_F(LanguageTableTest, SeedsMayDifferInTheirCard) {
  add("base", {3.0, 3.1, 3.2});
  add("other", {3.1, 3.3});
  for (const auto& run : runs_) {
    if (run->seed == 0) continue;
    LanguageOutcome outcome = read_config<LanguageOutcome>(run->outcome);
    outcome.cost.cards = {"H200"}, outcome.cost.tokens_per_second = 7000;
    run->outcome = write_config(outcome);
  }
  const std::string table = language_table(summary(), points_);
  EXPECT_THAT(table, AllOf(HasSubstr("| 5000 (H100), 7000 (H200) |"), HasSubstr("Card: H100 (seed 0), H200 (seeds 1, 2). Commit")));
}

TEST_F(LanguageTableTest, RowsOfOtherTokensAreNamed) {
  add("base", {3.0});
  add("other", {3.1});
  runs_.back()->outcome.set("order_hash", Config(std::string("fedcba9876543210")));
  EXPECT_THAT(language_table(summary(), points_),
              HasSubstr("Not all models saw the same tokens in the same order; hashes of data and order: seed 0 0123456789abcdef (base), "
                        "seed 0 fedcba9876543210 (other)."));
  add("third", {3.2}, "H100", "0000000000000000");
  EXPECT_THAT(message_of<Error>([&] { language_table(summary(), points_); }), HasSubstr("third was scored on other held-out text"));
}

TEST(Latex, EscapesTheCharactersThatItReads) {
  EXPECT_EQ(latex("50 % & $x_1^2$ #{~} \\ ≤ ± é\t<"),
            "50 \\% \\& \\$x\\_1\\textasciicircum{}2\\$ \\#\\{\\textasciitilde{}\\} \\textbackslash{} $\\le$ $\\pm$ é \\textless{}");
}

}  // namespace language_test
}  // namespace based
