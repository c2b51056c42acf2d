#include "based/train/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/models/device.h"

namespace based {
namespace {

constexpr size_t kWindow = 64, kWindowMin = 32;
constexpr double kSpike = 6;                // standard deviations
constexpr double kLeastDeviation = 0.05;    // nats: if losses hardly differ, a slightly larger one is not a spike
constexpr int64_t kReadEveryOnDevice = 32;  // each read leaves the device idle for some microseconds

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// JSON, and therefore a checkpoint, cannot hold a number that is not finite.
Figures finite(const Figures& figures) {
  Figures kept;
  for (const auto& [name, value] : figures)
    if (std::isfinite(value)) kept.emplace(name, value);
  return kept;
}

struct Step {
  int64_t at = 0;  // number of steps done, this one included
  double rate = 0;
  int64_t tokens = 0;
  std::vector<int64_t> windows;
  Tensor loss_and_norm;       // double [2] on the device, from TrainStep
  double loss = 0, norm = 0;  // the host copy of loss_and_norm, set by read(); norm: of the gradient, before clipping
  // Which of the two caused the update to be skipped; null if neither did.
  const char* not_finite() const { return !std::isfinite(loss) ? "loss" : !std::isfinite(norm) ? "gradient" : nullptr; }
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
        sync_every_(options.sync_every > 0    ? options.sync_every
                    : model.device().is_cpu() ? 1
                                              : kReadEveryOnDevice),
        step_(model, optimizer, options.step),
        progress_(options.label, options.steps, {.quiet = static_cast<bool>(hooks.progress)}, state.step) {
    result_.state = std::move(state);
    if (result_.state.step > 0) saved_ = result_.state.step;  // the state was loaded from a checkpoint
  }

  LoopResult run() {
    const LoopState& state = result_.state;
    const bool finished_before = state.step >= options_.steps;
    require_finite_start();
    model_.train();
    reset_peak_memory(model_.device());
    while (state.step < options_.steps && !done_ && !interrupted()) {
      one_step();
      if (state.step < options_.steps) after_step();
    }
    if (!unread_.empty()) read();
    result_.interrupted = state.step < options_.steps && !done_;
    if (!finished_before) end();
    progress_.finish();
    model_.eval();
    result_.seconds = now() - start_;
    result_.peak_memory = peak_memory(model_.device());
    return result_;
  }

 private:
  void end() {
    if (!result_.interrupted) {
      if (!done_) evaluate();
      const auto loss = last_figures_.find("loss");
      if (loss != last_figures_.end() && !std::isfinite(loss->second))
        diverged(result_.state.step, "the last evaluation's loss is not finite");
    }
    require_finite_weights();
    if (hooks_.checkpoint && saved_ != result_.state.step) result_.last_save_failure = save();
  }

  [[noreturn]] void diverged(int64_t step, const std::string& what) {
    progress_.finish();
    result_.seconds = now() - start_;
    result_.peak_memory = peak_memory(model_.device());
    throw Diverged("training: step " + std::to_string(step) + ": " + what + "; try a lower learning rate", result_);
  }

  // The first parameter that is not finite, as "layers.0.mixer.A_log are not finite (1 of 16 numbers)"; empty if all are finite.
  std::string not_finite_weights() const {
    const torch::NoGradGuard no_grad;
    const auto parameters = model_.named_parameters();
    std::vector<Tensor> counts;
    for (const auto& item : parameters) counts.push_back(item.value().isfinite().logical_not().sum());
    const Tensor found = torch::stack(counts).cpu();
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t count = found.const_data_ptr<int64_t>()[i];
      if (count > 0)
        return parameters[i].key() + " are not finite (" + std::to_string(count) + " of " + std::to_string(parameters[i].value().numel()) +
               " numbers)";
    }
    return "";
  }

  void require_finite_weights() {
    if (const std::string which = not_finite_weights(); !which.empty()) diverged(result_.state.step, "the weights of " + which);
  }

  // Before the first step the learning rate cannot be the cause, so the message differs from require_finite_weights().
  void require_finite_start() {
    const std::string which = not_finite_weights();
    if (which.empty()) return;
    progress_.finish();
    if (!options_.weights_file.empty()) throw Error(options_.weights_file + ": the weights of " + which + ": the file is damaged");
    throw Error(
        "training: the initial weights of " + which +
        ", before the first step: they are drawn from the seed and the model's options; choose another seed, or look at the options");
  }

  static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

  // Launches a step. On the CPU it has finished when this returns.
  Step launch() {
    Step step;
    step.at = result_.state.step + 1;
    step.rate = learning_rate(schedule_, result_.state.step, options_.steps, options_.epoch_steps);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < options_.accumulate; ++i) {
      batches.push_back(hooks_.batch(result_.state.step * options_.accumulate + i));
      const Batch& batch = batches.back();
      step.tokens += batch.ids.numel();
      step.windows.insert(step.windows.end(), batch.windows.begin(), batch.windows.end());
    }
    step.loss_and_norm = step_.run(batches, result_.state.step, step.rate, /*look=*/sync_every_ == 1);
    return step;
  }

  bool must_read() const {
    const int64_t at = result_.state.step;
    return static_cast<int64_t>(unread_.size()) >= sync_every_ || at == options_.steps || due(options_.log_every, at) ||
           due(options_.evaluate_every, at) || due(options_.checkpoint_every, at);
  }

  void one_step() {
    LoopState& state = result_.state;
    const double start = now();
    unread_.push_back(launch());
    state.tokens += unread_.back().tokens;
    ++state.step;
    seconds_ += now() - start;
    if (must_read()) read();
    show();
  }

  // Waits for the launched steps, reads their losses and norms, and accounts for each step.
  void read() {
    const double start = now();
    std::vector<Tensor> results;
    for (const Step& step : unread_) results.push_back(step.loss_and_norm);
    const Tensor host = torch::stack(results).cpu();
    seconds_ += now() - start;
    const double* value = host.const_data_ptr<double>();
    std::vector<Step> steps = std::exchange(unread_, {});
    for (Step& step : steps) {
      step.loss = *value++, step.norm = *value++;
      tokens_ += step.tokens;
    }
    result_.tokens_per_second = static_cast<double>(tokens_) / seconds_;
    for (const Step& step : steps) account(step);
  }

  void account(const Step& step) {
    LoopState& state = result_.state;
    if (step.not_finite()) {
      skipped(step);
    } else {
      state.skipped_in_a_row = 0;
      state.loss = step.loss;
      if (options_.spikes) look_for_spike(step);
    }
    if (due(options_.log_every, step.at) || step.at == options_.steps) log(step);
  }

  void log(const Step& step) {
    if (!hooks_.metrics) return;
    if (!step.not_finite())
      hooks_.metrics->write({{"step", step.at}, {"loss", step.loss}, {"gradient_norm", step.norm}, {"learning_rate", step.rate}});
    hooks_.metrics->write_timing(step.at, seconds_, result_.tokens_per_second, peak_memory(model_.device()));
  }

  std::string describe(const Step& step, const std::string& what) const {
    Json windows = step.windows;
    return "step " + std::to_string(step.at) + ": " + what + (step.windows.empty() ? "" : "; windows " + dump_json(windows));
  }

  void skipped(const Step& step) {
    LoopState& state = result_.state;
    ++state.skipped;
    ++state.skipped_in_a_row;
    const std::string what = std::string("the ") + step.not_finite() + " is not finite";
    if (hooks_.metrics) hooks_.metrics->write({{"step", step.at}, {"skipped", what}, {"windows", step.windows}});
    log_warning(describe(step, what + ", the update is skipped"));
    if (state.skipped_in_a_row < options_.max_bad_steps) return;
    diverged(step.at, what + (step.windows.empty() ? "" : "; windows " + dump_json(Json(step.windows))) + "; " +
                          std::to_string(state.skipped_in_a_row) +
                          " steps in a row could not be used, the run ends here; look at the data of these windows");
  }

  void look_for_spike(const Step& step) {
    LoopState& state = result_.state;
    const double deviations = state.window.add(step.loss);
    if (deviations < kSpike) return;
    ++state.spikes;
    if (hooks_.metrics) hooks_.metrics->write({{"step", step.at}, {"spike", deviations}, {"windows", step.windows}});
    log_warning(describe(step, "the loss " + format_number(step.loss, 3) + " is " + format_number(deviations, 1) +
                                   " standard deviations above those before"));
  }

  void after_step() {
    const LoopState& state = result_.state;
    bool best = false;
    if (due(options_.evaluate_every, state.step)) best = evaluate();
    if (!hooks_.checkpoint || !(due(options_.checkpoint_every, state.step) || (best && options_.checkpoint_best))) return;
    require_finite_weights();
    // A failed save does not end the run: earlier checkpoints still exist, and the next save may succeed.
    const std::string failure = save();
    if (failure.empty()) return;
    ++result_.failed_saves;
    log_warning("the checkpoint of step " + std::to_string(state.step) + " could not be saved (" + std::to_string(result_.failed_saves) +
                " so far); earlier checkpoints are kept and training continues: " + failure);
  }

  // Returns whether this evaluation is the best so far.
  bool evaluate() {
    if (!hooks_.evaluate) return false;
    require_finite_weights();
    LoopState& state = result_.state;
    model_.eval();
    last_figures_ = hooks_.evaluate(state.step);
    model_.train();
    Json line{{"step", state.step}};
    for (const auto& [name, value] : last_figures_) line["eval_" + name] = value;
    if (hooks_.metrics) hooks_.metrics->write(line);
    state.evaluation = finite(last_figures_);
    done_ = hooks_.done && hooks_.done(state);
    show();
    const auto loss = state.evaluation.find("loss");
    if (loss == state.evaluation.end() || (state.best_step >= 0 && loss->second >= state.best_loss)) return false;
    state.best_step = state.step;
    state.best_loss = loss->second;
    return true;
  }

  // Returns the reason of a failure, or "".
  std::string save() {
    try {
      hooks_.checkpoint(result_.state);
      saved_ = result_.state.step;
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  void show() {
    const LoopState& state = result_.state;
    if (hooks_.progress) return hooks_.progress(state);
    Progress::Fields fields{{"loss", format_number(state.loss, 3)}, {"tokens/s", format_count(result_.tokens_per_second)}};
    for (const auto& [key, value] : state.evaluation) fields.emplace_back("eval " + key, format_number(value, 3));
    progress_.update(state.step, fields);
  }

  LanguageModel& model_;
  AdamW& optimizer_;
  const OptimizerOptions& schedule_;
  const LoopOptions& options_;
  const LoopHooks& hooks_;
  const int64_t sync_every_;
  TrainStep step_;
  std::vector<Step> unread_;  // steps whose figures have not been read yet, in order
  Progress progress_;
  LoopResult result_;
  Figures last_figures_;  // all figures of the last evaluation, finite or not
  const double start_ = now();
  double seconds_ = 0;
  int64_t tokens_ = 0, saved_ = -1;
  bool done_ = false;  // the last result of hooks_.done
};

}  // namespace

double LossWindow::add(double loss) {
  double deviations = 0;
  if (losses_.size() >= kWindowMin) {
    const double count = static_cast<double>(losses_.size());
    const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) / count;
    double squares = 0;
    for (const double one : losses_) squares += (one - mean) * (one - mean);
    deviations = (loss - mean) / std::max(std::sqrt(squares / count), kLeastDeviation);
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
