// Text runs and their evaluation on several ranks, which are threads here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <set>

#include "based/core/files.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/train/evaluation.h"
#include "tests/train/rank_threads.h"
#include "tests/train/results.h"
#include "tests/train/small_run.h"

namespace based {
namespace ranks_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ChangeOfRank = std::function<void(int64_t rank, TextRun& run, TextRunOptions& options)>;

std::vector<std::exception_ptr> attempt(int64_t world, const TextRun& run, const std::string& out, const TextRunOptions& options,
                                        std::vector<TextRunResult>& results, const ChangeOfRank& change = {}) {
  results.assign(static_cast<size_t>(world), {});
  return on_rank_threads(world, [&](const std::shared_ptr<Collectives>& ranks) {
    TextRun own_run = run;
    TextRunOptions own = options;
    own.ranks = ranks;
    if (change) change(ranks->rank(), own_run, own);
    results[static_cast<size_t>(ranks->rank())] = run_text_training(own_run, out, own);
  });
}

// The results of all ranks.
std::vector<TextRunResult> train_on(int64_t world, const TextRun& run, const std::string& out, const TextRunOptions& options = {}) {
  std::vector<TextRunResult> results;
  rethrow_first(attempt(world, run, out, options, results));
  return results;
}

TextRun small_run_for_ranks(const TemporaryFolder& folder) {
  TextRun run = small_run(folder);
  run.train.batch = 12;
  run.train.length = 16;
  run.train.steps = 8;
  run.train.log_every = 1;
  run.train.evaluate_every = 0;
  run.train.evaluate_batches = 1;
  run.optimizer.learning_rate = 1e-3;
  run.checkpoint.keep = 100;
  return run;
}

std::vector<Json> lines_of(const std::string& out, const std::string& key) {
  std::vector<Json> lines;
  std::ifstream file(out + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    Json parsed = parse_json(line, "metrics");
    if (parsed.contains(key)) lines.push_back(std::move(parsed));
  }
  return lines;
}

// The same windows in the same order, and equal figures up to rounding.
void expect_same_steps(const std::string& one, const std::string& other) {
  const std::vector<Json> wanted = lines_of(one, "gradient_norm"), found = lines_of(other, "gradient_norm");
  ASSERT_EQ(wanted.size(), found.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(wanted[i]["step"], found[i]["step"]);
    EXPECT_EQ(wanted[i]["order_hash"], found[i]["order_hash"]) << "step " << wanted[i]["step"];
    for (const char* name : {"loss", "gradient_norm"})
      EXPECT_NEAR(wanted[i][name].get<double>() / found[i][name].get<double>(), 1, 1e-3) << name << " of step " << wanted[i]["step"];
  }
  ASSERT_EQ(lines_of(one, "eval_loss").size(), 1U);
  EXPECT_NEAR(lines_of(one, "eval_loss")[0]["eval_loss"].get<double>(), lines_of(other, "eval_loss")[0]["eval_loss"].get<double>(), 1e-3);
}

// Every step's windows, loss and norm are those of one rank, with dropout, and with the optimizer's state shared.
TEST(TextRanks, TrainAsOneDoes) {
  const TemporaryFolder folder;
  TextRun run = small_run_for_ranks(folder);
  run.model.set("embedding_dropout", Config(0.2));
  train_on(1, run, folder.file("one"));
  std::set<Json> hashes;
  for (const Json& line : lines_of(folder.file("one"), "order_hash")) hashes.insert(line["order_hash"]);
  EXPECT_EQ(hashes.size(), 8U) << "each step adds its windows";
  for (const int64_t world : {2, 3, 4})
    for (const bool shard : {false, true}) {
      const std::string out = folder.file(std::to_string(world) + (shard ? "-shard" : ""));
      run.train.shard = shard;
      run.train.accumulate = world == 2 ? 3 : 1;
      const std::vector<TextRunResult> results = train_on(world, run, out);
      SCOPED_TRACE(out);
      expect_same_steps(folder.file("one"), out);
      for (const TextRunResult& result : results) {
        EXPECT_EQ(result.loop.state.loss, results[0].loop.state.loss);
        EXPECT_EQ(result.loop.state.tokens, 8 * 12 * 16);
        EXPECT_EQ(result.loop.state.evaluation, results[0].loop.state.evaluation);
      }
    }
}

// A group's windows, its rows and the order of the sums do not depend on the ranks.
TEST(TextRanks, EvaluateEachWindowOnceToTheSameBits) {
  const TemporaryFolder folder;
  TextDataConfig config;
  config.train = write_text(folder);
  config.tokenizer = "bytes";
  const TextData data = load_text_data(config, 64);
  LoaderConfig order;
  order.length = 64;
  const auto figures_on = [&](int64_t world) {
    Figures on_leader;
    rethrow_first(on_rank_threads(world, [&](const std::shared_ptr<Collectives>& ranks) {
      const auto model = make_model(find_preset("based-tiny"), 3);
      model->eval();
      HeldOutWindows held_out(data.valid, order, 13);
      held_out.add_slices(*data.train, {500, 1000});
      const Figures figures = held_out.score(*model, *ranks);
      if (ranks->rank() == 0) on_leader = figures;
    }));
    return on_leader;
  };
  const Figures figures = figures_on(1);
  for (const int64_t world : {2, 3, 5}) EXPECT_EQ(figures_on(world), figures) << world;
  const double wanted = figures.at("loss"), share = figures.at("slice_ar_share_1000");
  EXPECT_GT(figures.at("slice_ar_share_500"), 0);
  EXPECT_GT(share, figures.at("slice_ar_share_500"));
  EXPECT_LT(share, 1);
  EXPECT_NEAR(share * std::log(figures.at("slice_ar_1000")) + (1 - share) * std::log(figures.at("slice_other_1000")), wanted, 1e-12);
  const auto model = make_model(find_preset("based-tiny"), 3);
  model->eval();
  order.batch = 1;
  Loader one_by_one(data.valid, order);
  double nats = 0;
  for (int i = 0; i < 13; ++i) {
    const Batch batch = to_batch(one_by_one.next());
    nats += model->evaluation_nats(batch.ids, batch.labels, batch.rows).sum().item<double>();
  }
  EXPECT_NEAR(wanted, nats / (13 * 64), 1e-6);
}

// Saved on two ranks at step 4. The windows of the steps after it are those of the uninterrupted run, for any number of ranks.
TEST(TextRanks, ACheckpointOfTwoContinuesOnOneAndFour) {
  for (const bool shard : {false, true}) {
    const TemporaryFolder folder;
    TextRun run = small_run_for_ranks(folder);
    run.train.shard = shard;
    run.checkpoint.every = 4;
    const std::string whole = folder.file("whole");
    train_on(2, run, whole);
    for (const int64_t world : {1, 2, 4}) {
      const std::string out = folder.file("on-" + std::to_string(world));
      std::filesystem::copy(whole, out, std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
      take_back_to(out, 4);
      run.train.accumulate = world == 1 ? 2 : 1;
      EXPECT_EQ(train_on(world, run, out, {.resume = true})[0].resumed_from, 4);
      SCOPED_TRACE(out);
      expect_same_steps(whole, out);
      if (world == 2) expect_equal_results(whole, out);
    }
  }
}

TEST(TextRanks, RanksThatDifferAreNamedAtTheStart) {
  const TemporaryFolder folder;
  const TextRun run = small_run_for_ranks(folder);
  std::vector<TextRunResult> results;
  const auto messages = [&](const std::string& out, const ChangeOfRank& change) {
    std::set<std::string> all;
    for (const std::exception_ptr& thrown : attempt(3, run, folder.file(out), {}, results, change))
      all.insert(message_of<Error>([&] {
        if (thrown) std::rethrow_exception(thrown);
      }));
    return all;
  };
  EXPECT_THAT(
      messages("keys", [](int64_t rank, TextRun& own, TextRunOptions&) { own.optimizer.clip = rank == 1 ? 2 : 1; }),
      ElementsAre(HasSubstr("the ranks differ in the configuration, first in optimizer.clip: rank 1 has '2.0', the others have '1.0'")));
  std::ofstream(folder.file("other.txt")) << read_file(run.data.train) << "one line more\n";
  EXPECT_THAT(messages("data",
                       [&](int64_t rank, TextRun& own, TextRunOptions&) {
                         if (rank == 2) own.data.train = folder.file("other.txt");
                       }),
              ElementsAre(HasSubstr("the ranks differ in the data: rank 2 has")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("data/metrics.jsonl"))) << "nothing was started";
}

TEST(TextRanks, ABatchThatDoesNotDivideIsRefusedWithItsNumbers) {
  const TemporaryFolder folder;
  TextRun run = small_run_for_ranks(folder);
  run.train.accumulate = 2;
  EXPECT_THAT(message_of<UsageError>([&] { train_on(4, run, folder.file("out")); }), HasSubstr("12 rows, 2 parts, 4 devices"));
}

TEST(TextRanks, ASignalStopsAllAfterTheSameStep) {
  const TemporaryFolder folder;
  TextRun run = small_run_for_ranks(folder);
  run.train.steps = 1000;
  const InterruptScope interrupts;  // one for all threads
  bool raised = false;
  const TextRunOptions options{.progress = [&](const LoopState& state) {
    if (state.step == 3 && !std::exchange(raised, true)) std::raise(SIGTERM);
  }};
  const std::vector<TextRunResult> results = train_on(3, run, folder.file("out"), options);
  const int64_t step = results[0].loop.state.step;
  EXPECT_GE(step, 3);
  EXPECT_LE(step, 5);
  for (const TextRunResult& result : results) {
    EXPECT_TRUE(result.loop.interrupted);
    EXPECT_EQ(result.loop.state.step, step);
  }
  EXPECT_THAT(Checkpoints(folder.file("out/checkpoints"), 1).steps(), ElementsAre(step)) << "saved once";
}

// The writing of the second checkpoint fails on rank 0, where it takes long.
TEST(TextRanks, ASaveThatFailsFailsOnAllAndTrainingContinues) {
  const TemporaryFolder folder;
  TextRun run = small_run_for_ranks(folder);
  run.train.steps = 4;
  run.checkpoint.every = 1;
  const TextRunOptions options{.before_write = [](const std::string& path) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (path.ends_with("step-2.tmp")) throw Error(path + ": the disk is full");
  }};
  for (const TextRunResult& result : train_on(2, run, folder.file("out"), options)) {
    EXPECT_EQ(result.loop.failed_saves, 1);
    EXPECT_EQ(result.loop.last_save_failure, "");
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.checkpoint, folder.file("out/checkpoints/step-4"));
  }
  EXPECT_THAT(Checkpoints(folder.file("out/checkpoints"), 1).steps(), ElementsAre(1, 3, 4));
  const TextRunOptions last{.before_write = [](const std::string& path) {
    if (path.ends_with("step-4.tmp")) throw Error(path + ": the disk is full");
  }};
  for (const TextRunResult& result : train_on(2, run, folder.file("full"), last))
    EXPECT_THAT(result.failure, AllOf(HasSubstr("the checkpoint of the last step, 4, could not be saved"), HasSubstr("the disk is full")));
}

}  // namespace ranks_test
}  // namespace based
