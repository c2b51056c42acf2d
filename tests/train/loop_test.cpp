#include "based/train/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <optional>
#include <utility>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace loop_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Batch batch_at(int64_t index) {
  const Tensor ids = (torch::arange(64) * (index + 3)) % 251;
  return {ids, (ids * 5 + 1) % 251, Sequences::equal(2, 32), {2 * index, 2 * index + 1}};
}

struct Trial {
  std::shared_ptr<LanguageModel> model;
  std::unique_ptr<AdamW> optimizer;
  OptimizerOptions schedule;
  LoopOptions options;
  LoopHooks hooks;

  explicit Trial(int64_t steps, torch::Dtype dtype = torch::kFloat) {
    torch::manual_seed(1);
    model = std::make_shared<LanguageModel>(find_preset("based-tiny"));
    model->to(dtype);
    optimizer = std::make_unique<AdamW>(*model, schedule);
    options.steps = steps;
    hooks.batch = batch_at;
  }
  LoopResult go(LoopState state = {}) { return train_loop(*model, *optimizer, schedule, options, hooks, std::move(state)); }
  Tensor weights() const {
    std::vector<Tensor> all;
    for (const auto& parameter : model->parameters()) all.push_back(parameter.detach().flatten().to(torch::kDouble));
    return torch::cat(all);
  }
};

TEST(Loop, ASignalStopsItAfterTheStepAndSaves) {
  Trial run(1000);
  run.hooks.batch = [](int64_t index) {
    if (index == 3) std::raise(SIGINT);
    return batch_at(index);
  };
  std::vector<int64_t> saved;
  run.hooks.checkpoint = [&](const LoopState& state) { saved.push_back(state.step); };
  const LoopResult result = run.go();
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.state.step, 4);
  EXPECT_EQ(saved, std::vector<int64_t>{4});
}

// If the weights are not finite before the first step, the learning rate is not the cause: the message names the seed or the file.
TEST(Loop, WeightsThatBeginNotFiniteAreNamedBeforeTheFirstStep) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
    for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
      Trial run(4, dtype);
      {
        const torch::NoGradGuard no_grad;
        run.model->named_parameters()["norm.weight"][3].fill_(value);
        run.model->named_parameters()["norm.weight"][5].fill_(value);
      }
      int64_t batches = 0;
      run.hooks.batch = [&](int64_t index) { return ++batches, batch_at(index); };
      const auto refusal = [&] {
        EXPECT_EQ(message_of<Diverged>([&] {
                    try {
                      run.go();
                    } catch (const Diverged&) {
                      throw;
                    } catch (const Error&) {}
                  }),
                  "");
        return message_of<Error>([&] { run.go(); });
      };
      EXPECT_EQ(
          refusal(),
          "training: the initial weights of norm.weight are not finite (2 of 32 numbers), before the first step: they are drawn from the "
          "seed and the model's options; choose another seed, or look at the options");
      run.options.weights_file = "run/checkpoints/step-3/model.safetensors";
      EXPECT_THAT(refusal(),
                  AllOf(HasSubstr("run/checkpoints/step-3/model.safetensors: the weights of norm.weight are not finite (2 of 32"),
                        Not(HasSubstr("learning rate")), Not(HasSubstr("seed"))));
      EXPECT_EQ(batches, 0);
    }
}

// The weights are not finite during three steps, which only change the counters.
TEST(Loop, StepsThatAreNotFiniteAreSkippedAndNamed) {
  const TemporaryFolder folder;
  Trial run(8), without(5);
  int64_t skipped = 0;
  without.hooks.batch = [](int64_t index) { return batch_at(index < 2 ? index : index + 3); };
  Metrics metrics(folder.path().string(), std::nullopt);
  run.hooks.metrics = &metrics;
  Tensor weight = run.model->named_parameters()["norm.weight"];
  run.hooks.batch = [&](int64_t index) {
    const torch::NoGradGuard no_grad;
    if (index == 2) weight.add_(std::numeric_limits<double>::infinity());
    if (index == 5) weight.copy_(without.model->named_parameters()["norm.weight"]);
    skipped += index >= 2 && index < 5;
    return batch_at(index);
  };
  run.options.max_bad_steps = 4;
  // The same two steps, then the steps after the gap; the rate is constant, so that only the batches matter.
  run.schedule.warmup = without.schedule.warmup = 0;
  run.schedule.min_learning_rate = without.schedule.min_learning_rate = run.schedule.learning_rate;
  without.options.steps = 2;
  LoopState between = without.go().state;
  without.options.steps = 5;
  const LoopResult result = run.go();
  without.go(between);
  EXPECT_EQ(result.state.skipped, 3);
  EXPECT_EQ(skipped, 3);
  EXPECT_EQ(result.state.skipped_in_a_row, 0);
  EXPECT_TRUE(torch::equal(run.weights(), without.weights()));
  metrics.position();
  const std::string lines = read_file(folder.file("metrics.jsonl"));
  EXPECT_THAT(lines, HasSubstr(R"({"step":3,"skipped":"the loss is not finite","windows":[4,5]})"));
  EXPECT_THAT(lines, HasSubstr(R"({"step":5,"skipped":"the loss is not finite","windows":[8,9]})"));
}

TEST(Loop, AGradientThatIsNotFiniteIsSkippedToo) {
  Trial run(3);
  run.model->parameters()[0].register_hook([](const Tensor& gradient) { return gradient * std::numeric_limits<double>::quiet_NaN(); });
  const Tensor before = run.weights();
  const LoopResult result = run.go();
  EXPECT_EQ(result.state.skipped, 3);
  EXPECT_TRUE(torch::equal(run.weights(), before));
  EXPECT_TRUE(std::isfinite(result.state.loss));
}

// Losses are read some steps later, as on a GPU. Nothing else differs.
TEST(Loop, ReadingFiguresLaterChangesNothing) {
  const auto train = [](int64_t sync_every, int64_t accumulate, const std::string& folder) {
    Trial run(40);
    Metrics metrics(folder, std::nullopt);
    run.hooks.metrics = &metrics;
    run.options.sync_every = sync_every;
    run.options.accumulate = accumulate;
    run.options.log_every = 7;
    run.options.evaluate_every = 11;
    run.options.checkpoint_every = 13;
    Tensor norm = run.model->named_parameters()["norm.weight"];
    Tensor before = norm.detach().clone();
    run.hooks.batch = [&](int64_t index) {  // three steps that cannot be used, and one whose loss jumps
      const torch::NoGradGuard no_grad;
      const int64_t step = index % accumulate == 0 ? index / accumulate : -1;
      if (step == 17) before = norm.detach().clone();
      if (step == 17) norm.fill_(std::numeric_limits<double>::infinity());
      if (step == 20 || step == 37) norm.copy_(before);
      if (step == 36) before = norm.detach().clone(), norm.mul_(-30);
      return batch_at(index);
    };
    run.hooks.evaluate = [&](int64_t) { return Figures{{"loss", run.weights().abs().sum().item<double>()}}; };
    std::vector<std::string> saved;
    run.hooks.checkpoint = [&](const LoopState& state) { saved.push_back(write_config(state).to_json()); };
    const LoopResult result = run.go();
    metrics.position();
    EXPECT_EQ(result.state.skipped, 3);
    EXPECT_GE(result.state.spikes, 1);
    return std::tuple(read_file(folder + "/metrics.jsonl"), saved, run.weights());
  };
  for (const int64_t accumulate : {1, 2}) {
    const TemporaryFolder at_once, later;
    const auto [lines, saved, weights] = train(1, accumulate, at_once.path().string());
    const auto [late_lines, late_saved, late_weights] = train(5, accumulate, later.path().string());
    EXPECT_EQ(lines, late_lines);
    EXPECT_EQ(saved, late_saved);
    EXPECT_TRUE(torch::equal(weights, late_weights));
    EXPECT_THAT(lines, HasSubstr(R"("skipped":"the loss is not finite")"));
  }
}

TEST(Loop, ARecordedStepRefusesOtherShapes) {
  Trial run(3);
  run.options.step.recordings = 1;
  run.hooks.batch = [](int64_t index) {
    Batch batch = batch_at(index);
    batch.labelled = 64;
    if (index == 2) batch.rows = Sequences::equal(4, 16);
    return batch;
  };
  EXPECT_THAT(message_of<Error>([&] { run.go(); }), HasSubstr("batches of the same rows"));
}

// Bad weights from the eleventh batch on.
void expect_ended_by_bad_steps(Trial& run) {
  run.options.max_bad_steps = 3;
  run.hooks.batch = [&](int64_t index) {
    const torch::NoGradGuard no_grad;
    if (index == 10) run.model->named_parameters()["norm.weight"].fill_(std::numeric_limits<double>::infinity());
    return batch_at(index);
  };
  EXPECT_THAT(message_of<Error>([&] { run.go(); }), HasSubstr("step 13: the loss is not finite; windows [24,25]; 3 steps in a row"));
}

TEST(Loop, TooManyBadStepsInARowEndItThoughTheyAreReadLater) {
  Trial run(100);
  run.options.sync_every = 8;
  run.options.log_every = 1000;
  expect_ended_by_bad_steps(run);
}

TEST(Loop, TooManyBadStepsInARowEndIt) {
  Trial run(100);
  expect_ended_by_bad_steps(run);
}

TEST(Loop, ASaveThatFailsIsCountedAndTrainingGoesOn) {
  Trial run(9);
  run.options.checkpoint_every = 2;
  std::vector<int64_t> saved;
  run.hooks.checkpoint = [&](const LoopState& state) {
    if (state.step == 4 || state.step == 6) throw Error("disk full");
    saved.push_back(state.step);
  };
  const LoopResult result = run.go();
  EXPECT_EQ(result.failed_saves, 2);
  EXPECT_EQ(saved, (std::vector<int64_t>{2, 8, 9}));
  run.options.steps = 12;
  run.hooks.checkpoint = [](const LoopState&) { throw Error("disk full"); };
  const LoopResult full = run.go(result.state);
  EXPECT_EQ(full.last_save_failure, "disk full");
  EXPECT_EQ(full.state.step, 12);
}

// Saves that end after checkpoint() returned: their failures are known later.
TEST(Loop, ASaveThatFailsLaterIsCountedAndTheLastOneIsNamed) {
  Trial run(6);
  run.options.checkpoint_every = 2;
  std::optional<FailedSave> running, failed;
  run.hooks.checkpoint = [&](const LoopState& state) {
    failed = running;
    running = FailedSave{state.step, "disk full at " + std::to_string(state.step)};
  };
  run.hooks.failed_save = [&](bool wait) {
    if (wait && !failed) failed = std::exchange(running, std::nullopt);
    return std::exchange(failed, std::nullopt);
  };
  const LoopResult result = run.go();
  EXPECT_EQ(result.failed_saves, 2) << "steps 2 and 4";
  EXPECT_EQ(result.last_save_failure, "disk full at 6");
}

// A weight spoilt in the sixth of eight steps, whose loss no label asks for: no step is skipped, and the end would pass for a good one.
TEST(Loop, WeightsThatAreNotFiniteEndItBeforeTheyAreSavedOrEvaluated) {
  for (const int64_t every : {0, 3}) {
    Trial run(8);
    std::vector<int64_t> saved, evaluated;
    run.options.checkpoint_every = 3;
    run.options.evaluate_every = every;
    run.hooks.checkpoint = [&](const LoopState& state) { saved.push_back(state.step); };
    run.hooks.evaluate = [&](int64_t step) {
      evaluated.push_back(step);
      return Figures{{"loss", 1.0}};
    };
    run.hooks.batch = [&](int64_t index) {
      const torch::NoGradGuard no_grad;
      if (index == 5) run.model->named_parameters()["embedding"][256].fill_(std::numeric_limits<double>::quiet_NaN());
      Batch batch = batch_at(index);
      if (index >= 5) batch.labels.fill_(-100);
      return batch;
    };
    try {
      run.go();
      ADD_FAILURE() << "it ended well";
    } catch (const Diverged& diverged) {
      EXPECT_THAT(diverged.what(), HasSubstr("training: step 6: the weights of embedding are not finite"));
      EXPECT_EQ(diverged.result.state.step, 6);
    }
    EXPECT_EQ(saved, (std::vector<int64_t>{3}));
    EXPECT_EQ(evaluated, every == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{3});
  }
}

TEST(Loop, ALastEvaluationThatIsNotFiniteIsNoGoodEnd) {
  Trial run(4);
  int64_t saves = 0;
  run.hooks.checkpoint = [&](const LoopState&) { ++saves; };
  run.hooks.evaluate = [](int64_t) { return Figures{{"loss", std::numeric_limits<double>::quiet_NaN()}}; };
  EXPECT_THAT(message_of<Diverged>([&] { run.go(); }), HasSubstr("step 4: the last evaluation's loss is not finite"));
  EXPECT_EQ(saves, 0);
}

TEST(Loop, TheBestEvaluationIsSaved) {
  Trial run(10);
  run.options.evaluate_every = 2;
  run.options.checkpoint_best = true;
  const std::map<int64_t, double> losses{{2, 3.0}, {4, 2.0}, {6, std::numeric_limits<double>::quiet_NaN()}, {8, 2.5}, {10, 2.25}};
  run.hooks.evaluate = [&](int64_t step) { return Figures{{"loss", losses.at(step)}}; };
  std::vector<int64_t> saved;
  run.hooks.checkpoint = [&](const LoopState& state) { saved.push_back(state.step); };
  const LoopResult result = run.go();
  EXPECT_EQ(saved, (std::vector<int64_t>{2, 4, 10}));
  EXPECT_EQ(result.state.best_step, 4);
  EXPECT_EQ(result.state.best_loss, 2.0);
  EXPECT_EQ(result.state.evaluation.at("loss"), 2.25);
}

// Two batches a step, one of them with half the labels: the gradient is that of all labels at once.
TEST(Loop, AccumulationEqualsTheBiggerBatchToRounding) {
  const auto half = [](int64_t index) {
    Batch batch = batch_at(index);
    if (index % 2 == 1) batch.labels.narrow(0, 0, 32).fill_(-100);
    return batch;
  };
  for (const torch::Dtype dtype : {torch::kDouble, torch::kFloat}) {
    Trial parts(6, dtype), whole(6, dtype);
    parts.options.accumulate = 2;
    parts.hooks.batch = half;
    whole.hooks.batch = [&](int64_t index) {
      const Batch a = half(2 * index), b = half(2 * index + 1);
      return Batch{torch::cat({a.ids, b.ids}), torch::cat({a.labels, b.labels}), Sequences::equal(4, 32)};
    };
    const double loss = parts.go().state.loss;
    EXPECT_NEAR(loss, whole.go().state.loss, dtype == torch::kDouble ? 1e-12 : 1e-4);
    EXPECT_LT((parts.weights() - whole.weights()).abs().max().item<double>(), dtype == torch::kDouble ? 1e-9 : 1e-3);
  }
}

TEST(Loop, RecomputedActivationsGiveTheSameWeights) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
    Trial kept(4, dtype), recomputed(4, dtype);
    recomputed.model->set_checkpoint_activations(true);
    EXPECT_EQ(kept.go().state.loss, recomputed.go().state.loss);
    const auto wanted = kept.model->named_parameters(), found = recomputed.model->named_parameters();
    for (const auto& item : wanted)
      EXPECT_TRUE(torch::equal(item.value(), found[item.key()]))
          << item.key() << " differs by " << (item.value() - found[item.key()]).abs().max().item<double>();
  }
}

// Updates far below half a unit of the bf16 weights add up in the masters.
TEST(Loop, Bf16TrainsOnFp32Masters) {
  Trial run(60, torch::kBFloat16), full(60);
  run.schedule.learning_rate = full.schedule.learning_rate = 3e-3;
  const auto same = [](int64_t) { return batch_at(0); };
  run.hooks.batch = full.hooks.batch = same;
  const double loss = run.go().state.loss, wanted = full.go().state.loss;
  EXPECT_NEAR(loss, wanted, 0.02 * wanted);
  EXPECT_LT(wanted, 3) << "5.5 at the start";
  for (const AdamW::Slot& slot : run.optimizer->slots()) {
    EXPECT_EQ(slot.master.scalar_type(), torch::kFloat);
    EXPECT_EQ(slot.first_moment.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(slot.parameter, slot.master.to(torch::kBFloat16))) << slot.name;
    EXPECT_FALSE(torch::equal(slot.parameter.to(torch::kFloat), slot.master)) << slot.name << ": the master keeps what bf16 rounds away";
  }
}

TEST(LossWindow, CallsNoRippleASpike) {
  LossWindow flat, equal;
  for (int i = 0; i < 40; ++i) flat.add(i % 2 ? 0.001 : 0.002), equal.add(3);
  EXPECT_LT(flat.add(0.1), 3) << "a hundred of its own standard deviations";
  EXPECT_GT(flat.add(2), 20);
  EXPECT_GT(equal.add(5), 20);
}

TEST(LossWindow, FindsSpikesOnceItHasSeenEnough) {
  LossWindow window;
  for (int i = 0; i < 31; ++i) EXPECT_EQ(window.add(i % 2 ? 1.0 : 1.2), 0) << "too few to tell";
  EXPECT_EQ(window.add(1.2), 0);
  EXPECT_NEAR(window.add(1.1), 0, 0.1);
  EXPECT_GT(window.add(3.0), 15);
  const LossWindow again = read_config<LossWindow>(write_config(window));
  LossWindow copy = again;
  EXPECT_EQ(copy.add(4.0), window.add(4.0)) << "kept in a checkpoint";
}

}  // namespace loop_test
}  // namespace based
