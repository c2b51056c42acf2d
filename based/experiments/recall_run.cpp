#include "based/experiments/recall_run.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "based/core/interrupt.h"
#include "based/core/random.h"
#include "based/core/text.h"
#include "based/models/device.h"
#include "based/models/language_model.h"
#include "based/models/weights.h"
#include "based/train/loop.h"

namespace based {
namespace {

constexpr int64_t kTestTokens = int64_t{1} << 16;  // of one pass: enough to fill a GPU, and activations stay small beside training's
constexpr int64_t kProgressEvery = 64;             // steps

// How products of fp32 matrices are computed is a setting of the whole process: runs of one precision go side by side, those of another
// wait until they are done.
class PrecisionScope {
 public:
  explicit PrecisionScope(const std::string& precision) {
    if (precision != "fp32" && precision != "tf32")
      throw UsageError("training.precision must be fp32 or tf32, got " + in_quotes(precision));
    const bool tf32 = precision == "tf32";
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

// Consecutive examples of a segment.
struct Piece {
  const RecallData::Segment* of = nullptr;
  int64_t first = 0, count = 0;
  Tensor places, targets;  // int64 [labels]: the piece's tokens that have a label, and the words that they are to say

  Tensor inputs() const { return of->inputs.narrow(0, first, count).flatten(); }
};

// Views of one table a segment: no step looks for labels.
std::vector<Piece> pieces_of(const RecallData::Segment& segment, int64_t count) {
  const Tensor words = segment.targets.flatten(), all = (words >= 0).nonzero().squeeze(1), targets = words.index_select(0, all);
  BASED_ASSERT(all.size(0) == segment.examples * segment.labels);
  const Tensor places = all.remainder(count * segment.length);
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < segment.examples; first += count) {
    const int64_t size = std::min(count, segment.examples - first), from = first * segment.labels, labels = size * segment.labels;
    pieces.push_back({&segment, first, size, places.narrow(0, from, labels), targets.narrow(0, from, labels)});
  }
  return pieces;
}

class Run {
 public:
  Run(const RecallRun& run, const RecallData& data, const RecallHooks& hooks)
      : run_(run), data_(data), hooks_(hooks), precision_(run.training.precision), model_(make_model(run.model, run.seed)) {
    model_->to(data.device());
    for (const auto& segment : data.train())
      for (const Piece& piece : pieces_of(segment, run.training.batch)) batches_.push_back(piece);
    for (const auto& segment : data.test()) tests_.push_back(pieces_of(segment, std::max<int64_t>(1, kTestTokens / segment.length)));
  }

  RecallOutcome go() {
    OptimizerOptions schedule = run_.optimizer;
    AdamW optimizer(*model_, schedule);
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
      const bool due = state.step % kProgressEvery == 0 || state.step % options.epoch_steps == 0;
      if (hooks_.progress && due) hooks_.progress(state.step, options.steps, state.loss, accuracy_);
    };
    const LoopResult loop = train_loop(*model_, optimizer, schedule, options, loop_hooks);
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
    if (!hooks_.save_to.empty()) save_model(*model_, hooks_.save_to);
    return outcome_;
  }

 private:
  static constexpr int64_t kMostShapes = 64;

  // Made once for each shape: they go to the device.
  const Sequences& rows_of(const Piece& piece) {
    const auto [found, is_new] = rows_.try_emplace({piece.count, piece.of->length});
    if (is_new) found->second = std::make_unique<Sequences>(Sequences::equal(piece.count, piece.of->length, data_.device()));
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
    const Piece& piece = batches_[run_.training.shuffle ? order_[at] : at];
    return {piece.inputs(), piece.targets, rows_of(piece), {}, piece.targets.size(0), piece.places};
  }

  Figures evaluate() {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> hits;  // of each segment: right ones, and ones that mean nothing
    for (const auto& segment : tests_) {
      Tensor sums = torch::zeros({2}, torch::dtype(torch::kInt64).device(data_.device()));
      for (const Piece& test : segment) {
        const Tensor hidden = model_->forward(test.inputs(), rows_of(test));
        const Tensor said = model_->most_likely(hidden.index_select(0, test.places));
        sums += torch::stack({(said == test.targets).sum(), (said < 0).sum()});
      }
      hits.push_back(sums);
    }
    const Tensor host = torch::stack(hits).cpu();
    auto& segments = outcome_.by_epoch.emplace_back();
    double sum = 0, examples = 0;
    for (size_t i = 0; i < tests_.size(); ++i) {
      const auto& segment = data_.test()[i];
      if (host[static_cast<int64_t>(i)][1].item<int64_t>() > 0)
        throw Error("the recall cannot be measured: what the model says is not finite");
      segments.push_back(host[static_cast<int64_t>(i)][0].item<double>() / static_cast<double>(segment.labels * segment.examples));
      sum += segments.back() * static_cast<double>(segment.examples);
      examples += static_cast<double>(segment.examples);
    }
    accuracy_ = sum / examples;
    return {{"accuracy", accuracy_}};
  }

  const RecallRun& run_;
  const RecallData& data_;
  const RecallHooks& hooks_;
  const PrecisionScope precision_;
  const OwnStream stream_{data_.device()};
  std::shared_ptr<LanguageModel> model_;
  std::vector<Piece> batches_;  // of an epoch, in the order of the data
  std::vector<std::vector<Piece>> tests_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Sequences>> rows_;
  std::vector<size_t> order_;
  int64_t epoch_ = -1;
  double accuracy_ = 0;
  RecallOutcome outcome_;
};

}  // namespace

RecallOutcome train_recall(const RecallRun& run, const RecallData& data, const RecallHooks& hooks) { return Run(run, data, hooks).go(); }

}  // namespace based
