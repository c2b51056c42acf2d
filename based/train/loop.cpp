#include "based/train/loop.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"

namespace based {
namespace {

constexpr size_t kWindow = 64, kWindowMin = 32;
constexpr double kSpike = 6;  // standard deviations

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// A number that JSON can hold and a checkpoint can read back.
Figures finite(const Figures& figures) {
  Figures kept;
  for (const auto& [name, value] : figures)
    if (std::isfinite(value)) kept.emplace(name, value);
  return kept;
}

struct Step {
  double loss = 0, norm = 0;  // norm: of the gradient, before clipping
  int64_t tokens = 0;
  std::vector<int64_t> windows;
  const char* not_finite = nullptr;  // "loss" or "gradient": then nothing was updated
};

class Loop {
 public:
  Loop(LanguageModel& model, AdamW& optimizer, const OptimizerOptions& schedule, const LoopOptions& options, const LoopHooks& hooks,
       LoopState state)
      : model_(model),
        optimizer_(optimizer),
        schedule_(schedule),
        options_(options),
        hooks_(hooks),
        progress_(options.label, options.steps, {}, state.step) {
    result_.state = std::move(state);
    if (result_.state.step > 0) saved_ = result_.state.step;  // it came from there
  }

  LoopResult run() {
    const double start = now();
    LoopState& state = result_.state;
    const bool finished_before = state.step >= options_.steps;
    model_.train();
    while (state.step < options_.steps && !interrupted()) {
      one_step();
      if (state.step < options_.steps) after_step();
    }
    result_.interrupted = state.step < options_.steps;
    if (!result_.interrupted && !finished_before) evaluate();
    progress_.finish();
    if (hooks_.checkpoint && !finished_before && saved_ != state.step) hooks_.checkpoint(state);
    model_.eval();
    result_.seconds = now() - start;
    return result_;
  }

 private:
  static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

  // Forward and backward over the step's batches, then the update.
  Step optimize(double rate) {
    Step step;
    std::vector<Batch> batches;
    int64_t labels = 0;
    std::vector<int64_t> counts;
    for (int64_t i = 0; i < options_.accumulate; ++i) {
      batches.push_back(hooks_.batch(result_.state.step * options_.accumulate + i));
      const Batch& batch = batches.back();
      counts.push_back(options_.accumulate == 1 ? 1 : (batch.labels >= 0).sum().item<int64_t>());
      labels += counts.back();
      step.tokens += batch.ids.numel();
      step.windows.insert(step.windows.end(), batch.windows.begin(), batch.windows.end());
    }
    optimizer_.zero_grad();
    for (size_t i = 0; i < batches.size(); ++i) {
      if (counts[i] == 0) continue;
      const double share = static_cast<double>(counts[i]) / static_cast<double>(labels);
      Tensor loss = model_.loss(batches[i].ids, batches[i].labels, batches[i].rows);
      if (batches.size() > 1) loss = loss * share;
      step.loss += loss.item<double>();
      if (!std::isfinite(step.loss)) {
        step.not_finite = "loss";
        return step;
      }
      loss.backward();
      optimizer_.collect_gradients();
    }
    step.norm = optimizer_.clip_gradients();
    if (!std::isfinite(step.norm)) {
      step.not_finite = "gradient";
      return step;
    }
    optimizer_.step(rate);
    return step;
  }

  void one_step() {
    LoopState& state = result_.state;
    const double start = now(), rate = learning_rate(schedule_, state.step, options_.steps);
    const Step step = optimize(rate);
    seconds_ += now() - start;
    tokens_ += step.tokens;
    state.tokens += step.tokens;
    ++state.step;
    result_.tokens_per_second = static_cast<double>(tokens_) / seconds_;
    if (step.not_finite) {
      skipped(step);
    } else {
      state.skipped_in_a_row = 0;
      state.loss = step.loss;
      look_for_spike(step);
    }
    if (due(options_.log_every, state.step) || state.step == options_.steps) log(step, rate);
    show();
  }

  void log(const Step& step, double rate) {
    if (!hooks_.metrics) return;
    const int64_t at = result_.state.step;
    if (!step.not_finite) hooks_.metrics->write({{"step", at}, {"loss", step.loss}, {"gradient_norm", step.norm}, {"learning_rate", rate}});
    hooks_.metrics->write_timing(at, seconds_, result_.tokens_per_second);
  }

  std::string describe(const Step& step, const std::string& what) const {
    Json windows = step.windows;
    return "step " + std::to_string(result_.state.step) + ": " + what + (step.windows.empty() ? "" : "; windows " + dump_json(windows));
  }

  void skipped(const Step& step) {
    LoopState& state = result_.state;
    ++state.skipped;
    ++state.skipped_in_a_row;
    const std::string what = std::string("the ") + step.not_finite + " is not finite";
    if (hooks_.metrics) hooks_.metrics->write({{"step", state.step}, {"skipped", what}, {"windows", step.windows}});
    log_warning(describe(step, what + ", the update is skipped"));
    if (state.skipped_in_a_row < options_.max_bad_steps) return;
    throw Error("training: " + describe(step, what) + "; " + std::to_string(state.skipped_in_a_row) +
                " steps in a row could not be used, the run ends here; try a lower learning rate, and look at the data of these windows");
  }

  void look_for_spike(const Step& step) {
    LoopState& state = result_.state;
    const double deviations = state.window.add(step.loss);
    if (deviations < kSpike) return;
    ++state.spikes;
    if (hooks_.metrics) hooks_.metrics->write({{"step", state.step}, {"spike", deviations}, {"windows", step.windows}});
    log_warning(
        describe(step, "the loss " + fixed(step.loss, 3) + " is " + fixed(deviations, 1) + " standard deviations above those before"));
  }

  void after_step() {
    const LoopState& state = result_.state;
    bool best = false;
    if (due(options_.evaluate_every, state.step)) best = evaluate();
    if (hooks_.checkpoint && (due(options_.checkpoint_every, state.step) || (best && options_.checkpoint_best))) save();
  }

  // Whether it is the best so far.
  bool evaluate() {
    if (!hooks_.evaluate) return false;
    LoopState& state = result_.state;
    model_.eval();
    const Figures figures = hooks_.evaluate(state.step);
    model_.train();
    Json line{{"step", state.step}};
    for (const auto& [name, value] : figures) line["eval_" + name] = value;
    if (hooks_.metrics) hooks_.metrics->write(line);
    state.evaluation = finite(figures);
    show();
    const auto loss = state.evaluation.find("loss");
    if (loss == state.evaluation.end() || (state.best_step >= 0 && loss->second >= state.best_loss)) return false;
    state.best_step = state.step;
    state.best_loss = loss->second;
    return true;
  }

  // The run outlives a save that fails: what was saved before is still there, and the next one may work.
  void save() {
    try {
      hooks_.checkpoint(result_.state);
      saved_ = result_.state.step;
    } catch (const Error& error) {
      ++result_.failed_saves;
      log_warning("the checkpoint of step " + std::to_string(result_.state.step) + " could not be saved (" +
                  std::to_string(result_.failed_saves) + " so far), those before are kept, training goes on: " + error.what());
    }
  }

  void show() {
    const LoopState& state = result_.state;
    Progress::Fields fields{{"loss", fixed(state.loss, 3)}, {"tokens/s", format_count(result_.tokens_per_second)}};
    for (const auto& [key, value] : state.evaluation) fields.emplace_back("eval " + key, fixed(value, 3));
    progress_.update(state.step, fields);
  }

  LanguageModel& model_;
  AdamW& optimizer_;
  const OptimizerOptions& schedule_;
  const LoopOptions& options_;
  const LoopHooks& hooks_;
  Progress progress_;
  LoopResult result_;
  double seconds_ = 0;
  int64_t tokens_ = 0, saved_ = -1;
};

}  // namespace

double LossWindow::add(double loss) {
  double deviations = 0;
  if (losses_.size() >= kWindowMin) {
    const double count = static_cast<double>(losses_.size());
    const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) / count;
    double squares = 0;
    for (const double one : losses_) squares += (one - mean) * (one - mean);
    const double deviation = std::sqrt(squares / count);
    if (deviation > 0) deviations = (loss - mean) / deviation;
  }
  if (losses_.size() == kWindow) losses_.erase(losses_.begin());
  losses_.push_back(loss);
  return deviations;
}

LoopResult train_loop(LanguageModel& model, AdamW& optimizer, const OptimizerOptions& schedule, const LoopOptions& options,
                      const LoopHooks& hooks, LoopState state) {
  const InterruptScope interrupts;
  return Loop(model, optimizer, schedule, options, hooks, std::move(state)).run();
}

}  // namespace based
