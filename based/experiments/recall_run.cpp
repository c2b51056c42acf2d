#include "based/experiments/recall_run.h"

#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>

#include "based/core/interrupt.h"
#include "based/core/random.h"
#include "based/experiments/recall_eval.h"
#include "based/models/weights.h"
#include "based/train/step.h"

namespace based {
namespace {

constexpr int64_t max_bad_steps = 10;  // in a row whose loss or gradient is not finite

struct Place {
  size_t segment = 0;
  int64_t first = 0;
};

std::vector<Place> epoch_order(const RecallRun& run, const RecallData& data, int64_t epoch) {
  std::vector<Place> order;
  for (size_t segment = 0; segment < data.train().size(); ++segment)
    for (int64_t first = 0; first < data.train()[segment].examples; first += run.training.batch) order.push_back({segment, first});
  if (run.training.shuffle) {
    Random random(static_cast<uint64_t>(run.seed), static_cast<uint64_t>(epoch));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

Batch batch_at(const RecallData& data, const Place& place, int64_t most) {
  const auto& segment = data.train()[place.segment];
  const int64_t rows = std::min(most, segment.examples - place.first);
  Batch batch{segment.inputs.narrow(0, place.first, rows).reshape({-1}), segment.targets.narrow(0, place.first, rows).reshape({-1}),
              Sequences::equal(rows, segment.length, data.device())};
  batch.labelled = rows * segment.labels;
  return batch;
}

// The generator that weights are drawn from is the process' own: one model at a time.
std::unique_ptr<LanguageModel> make_model(const RecallRun& run, torch::Device device) {
  static std::mutex one;
  const std::lock_guard lock(one);
  torch::manual_seed(static_cast<uint64_t>(run.seed));
  auto model = std::make_unique<LanguageModel>(run.model);
  model->to(device);
  return model;
}

}  // namespace

RecallOutcome train_recall(const RecallRun& run, const RecallData& data, const RecallHooks& hooks) {
  const auto start = std::chrono::steady_clock::now();
  if (run.training.precision != "fp32") throw Error("training.precision = " + run.training.precision + " is not yet there");
  const std::unique_ptr<LanguageModel> model = make_model(run, data.device());
  AdamW optimizer(*model, run.optimizer);
  TrainStep step(*model, optimizer);
  const auto epoch_steps = static_cast<int64_t>(epoch_order(run, data, 0).size());
  const int64_t steps = epoch_steps * run.training.epochs;
  RecallOutcome outcome;
  int64_t at = 0, bad = 0;
  while (outcome.epochs < run.training.epochs && (outcome.epochs == 0 || !(outcome.accuracy > run.training.stop_above))) {
    model->train();
    for (const Place& place : epoch_order(run, data, outcome.epochs)) {
      if ((outcome.interrupted = interrupted())) return outcome;
      const Tensor figures = step.run({batch_at(data, place, run.training.batch)}, learning_rate(run.optimizer, at, steps)).cpu();
      ++at;
      const double loss = figures.const_data_ptr<double>()[0], norm = figures.const_data_ptr<double>()[1];
      const bool usable = std::isfinite(loss) && std::isfinite(norm);
      bad = usable ? 0 : bad + 1;
      if (bad == max_bad_steps)
        throw Error("training: step " + std::to_string(at) + ": loss or gradient was not finite in " + std::to_string(bad) +
                    " steps in a row; try a lower learning rate");
      if (usable) outcome.loss = loss;
      if (hooks.progress) hooks.progress(at, steps, outcome.loss, outcome.accuracy);
    }
    const Recall recall = measure_recall(*model, data.test(), run.training.batch);
    outcome.accuracy = recall.mean;
    outcome.by_epoch.push_back(recall.segments);
    ++outcome.epochs;
    if (hooks.progress) hooks.progress(at, steps, outcome.loss, outcome.accuracy);
  }
  outcome.segments = outcome.by_epoch.back();
  outcome.parameters = model->parameter_count();
  int64_t longest = 0;
  for (const auto& segment : data.test()) longest = std::max(longest, segment.length);
  outcome.state_bytes = state_bytes(*model, longest);
  if (!hooks.save_to.empty()) save_model(*model, hooks.save_to);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

}  // namespace based
