#include "based/experiments/recall_run.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "based/core/random.h"
#include "based/core/text.h"
#include "based/experiments/recall_eval.h"
#include "based/models/device.h"
#include "based/models/language_model.h"
#include "based/train/loop.h"

namespace based {
namespace {

constexpr int64_t kTestTokens = int64_t{1} << 16;  // tokens per pass: enough to fill a GPU, with activations smaller than in training
constexpr int64_t kStepsPerUpdate = 64;            // steps

// Whether fp32 matrix products use TF32 is a setting of the whole process. Runs of the same precision therefore execute concurrently, and a
// run of the other precision waits until they have finished.
class PrecisionScope {
 public:
  explicit PrecisionScope(bool tf32) {
    std::unique_lock lock(mutex());
    changed().wait(lock, [&] { return users() == 0 || at::globalContext().allowTF32CuBLAS() == tf32; });
    at::globalContext().setAllowTF32CuBLAS(tf32);
    ++users();
  }
  ~PrecisionScope() {
    const std::lock_guard lock(mutex());
    if (--users() == 0) at::globalContext().setAllowTF32CuBLAS(false);
    changed().notify_all();
  }
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex it;
    return it;
  }
  static std::condition_variable& changed() {
    static std::condition_variable it;
    return it;
  }
  static int& users() {
    static int it = 0;
    return it;
  }
};

class Run {
 public:
  Run(const RecallRun& run, const RecallData& data, const RecallHooks& hooks)
      : run_(run), data_(data), hooks_(hooks), precision_(uses_tf32(run.training)), model_(make_model(run.model, run.seed)) {
    model_->to(data.device(), run.training.precision == "bf16" ? torch::kBFloat16 : torch::kFloat);
    for (const auto& segment : data.train())
      for (const RecallPiece& piece : recall_pieces(segment, run.training.batch)) batches_.push_back(piece);
    for (const auto& segment : data.test()) tests_.push_back(recall_pieces(segment, std::max<int64_t>(1, kTestTokens / segment.length)));
  }

  RecallOutcome go() {
    AdamW optimizer(*model_, run_.optimizer);
    LoopOptions options;
    options.epoch_steps = static_cast<int64_t>(batches_.size());
    options.steps = options.epoch_steps * run_.training.epochs;
    options.evaluate_every = options.epoch_steps;
    options.log_every = 0;
    options.spikes = false;
    options.step = {.recordings = data_.device().is_cpu() ? 0 : kMostShapes, .seed = run_.seed};
    LoopHooks loop_hooks;
    loop_hooks.batch = [this](int64_t step) { return batch_at(step); };
    loop_hooks.evaluate = [this](int64_t) { return evaluate(); };
    loop_hooks.done = [this](const LoopState&) { return accuracy_ > run_.training.stop_above; };
    loop_hooks.progress = [&](const LoopState& state) {
      const bool due = state.step % kStepsPerUpdate == 0 || state.step % options.epoch_steps == 0;
      if (hooks_.progress && due) hooks_.progress(state.step, options.steps, state.loss, accuracy_);
    };
    const LoopResult loop = train_loop(*model_, optimizer, run_.optimizer, options, loop_hooks);
    outcome_.interrupted = loop.interrupted;
    if (loop.interrupted) return outcome_;
    outcome_.accuracy = accuracy_;
    outcome_.segments = outcome_.by_epoch.back();
    outcome_.epochs = static_cast<int64_t>(outcome_.by_epoch.size());
    outcome_.loss = loop.state.loss;
    outcome_.seconds = loop.seconds;
    outcome_.parameters = model_->parameter_count();
    int64_t longest = 0;
    for (const auto& segment : data_.test()) longest = std::max(longest, segment.length);
    outcome_.state_bytes = state_bytes(*model_, longest);
    if (hooks_.trained) {
      model_->eval();
      hooks_.trained(*model_, outcome_);
    }
    return outcome_;
  }

 private:
  static constexpr int64_t kMostShapes = 64;

  // Cached by shape, because making one copies data to the device.
  const Sequences& rows_of(const RecallPiece& piece) {
    const auto [found, is_new] = rows_.try_emplace({piece.count, piece.segment->length});
    if (is_new) found->second = std::make_unique<Sequences>(Sequences::equal(piece.count, piece.segment->length, data_.device()));
    return *found->second;
  }

  Batch batch_at(int64_t step) {
    const auto count = static_cast<int64_t>(batches_.size());
    if (run_.training.shuffle && step / count != epoch_) {
      epoch_ = step / count;
      order_.resize(batches_.size());
      for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
      Random random(static_cast<uint64_t>(run_.seed), static_cast<uint64_t>(epoch_));
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
    }
    const auto at = static_cast<size_t>(step % count);
    const RecallPiece& piece = batches_[run_.training.shuffle ? order_[at] : at];
    return {piece.inputs(), piece.targets, rows_of(piece), {}, piece.targets.size(0), piece.places};
  }

  Figures evaluate() {
    Recall recall =
        measure_recall(*model_, tests_, [this](const RecallPiece& piece) { return model_->forward(piece.inputs(), rows_of(piece)); });
    accuracy_ = recall.mean;
    outcome_.by_epoch.push_back(std::move(recall.segments));
    return {{"accuracy", accuracy_}};
  }

  const RecallRun& run_;
  const RecallData& data_;
  const RecallHooks& hooks_;
  const PrecisionScope precision_;
  const OwnStream stream_{data_.device()};
  std::shared_ptr<LanguageModel> model_;
  std::vector<RecallPiece> batches_;  // the batches of an epoch, in the order of the data
  std::vector<std::vector<RecallPiece>> tests_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Sequences>> rows_;
  std::vector<size_t> order_;
  int64_t epoch_ = -1;
  double accuracy_ = 0;
  RecallOutcome outcome_;
};

}  // namespace

bool uses_tf32(const QuestionTraining& training) {
  for (const char* known : {"fp32", "tf32", "bf16"})
    if (training.precision == known) return training.precision == "tf32";
  throw UsageError("training.precision must be fp32, tf32 or bf16, got " + in_quotes(training.precision));
}

RecallOutcome train_recall(const RecallRun& run, const RecallData& data, const RecallHooks& hooks) { return Run(run, data, hooks).go(); }

}  // namespace based
