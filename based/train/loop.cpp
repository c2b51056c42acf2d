#include "based/train/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/models/device.h"

namespace based {
namespace {

constexpr size_t kWindow = 64, kWindowMin = 32;
constexpr double kSpike = 6;                // standard deviations
constexpr double kLeastDeviation = 0.05;    // nats: if losses hardly differ, a slightly larger one is not a spike
constexpr int64_t kReadEveryOnDevice = 32;  // each read leaves the device idle for some microseconds
constexpr double kAgreeEvery = 1;           // seconds between the ranks' agreements about signals

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
  std::string order_hash;     // set if the step gets a line of metrics
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
        ranks_(options.step.ranks ? options.step.ranks : make_single_rank()),
        look_(ranks_->world() == 1 && (options.sync_every == 1 || (options.sync_every == 0 && model.device().is_cpu()))),
        sync_every_(options.sync_every > 0                           ? options.sync_every
                    : model.device().is_cpu() || ranks_->world() > 1 ? 1
                                                                     : kReadEveryOnDevice),
        step_(model, optimizer, options.step),
        progress_(options.label, options.steps, {.quiet = hooks.progress || ranks_->rank() > 0}, state.step) {
    result_.state = std::move(state);
    if (result_.state.step > 0) saved_ = result_.state.step;  // the state was loaded from a checkpoint
  }

  LoopResult run() {
    const LoopState& state = result_.state;
    const bool finished_before = state.step >= options_.steps;
    require_finite_start();
    model_.train();
    reset_peak_memory(model_.device());
    while (state.step < options_.steps && !done_ && !stopped()) {
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
  // A single rank sees its signals at once. Several agree on them when they read.
  bool stopped() const { return ranks_->world() == 1 ? interrupted() : stop_agreed_; }

  void end() {
    if (!result_.interrupted) {
      if (!done_) evaluate();
      const auto loss = last_figures_.find("loss");
      if (loss != last_figures_.end() && !std::isfinite(loss->second))
        diverged(result_.state.step, "the last evaluation's loss is not finite");
    }
    require_finite_weights();
    if (hooks_.checkpoint && saved_ != result_.state.step) result_.last_save_failure = save();
    report_failed_saves(/*wait=*/true);
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

  bool is_logged(const Step& step) const { return due(options_.log_every, step.at) || step.at == options_.steps; }

  // Launches a step. On the CPU it has finished when this returns.
  Step launch() {
    Step step;
    step.at = result_.state.step + 1;
    step.rate = learning_rate(schedule_, result_.state.step, options_.steps, options_.epoch_steps);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < options_.accumulate; ++i) {
      {
        const ProfileRange range(ProfileLevel::phases, "data");
        batches.push_back(hooks_.batch(result_.state.step * options_.accumulate + i));
      }
      const Batch& batch = batches.back();
      step.tokens += batch.ids.numel() * ranks_->world();
      step.windows.insert(step.windows.end(), batch.windows.begin(), batch.windows.end());
    }
    if (hooks_.order_hash && is_logged(step)) step.order_hash = hooks_.order_hash();
    step.loss_and_norm = step_.run(batches, result_.state.step, step.rate, look_);
    return step;
  }

  bool must_read() const {
    const int64_t at = result_.state.step;
    return static_cast<int64_t>(unread_.size()) >= sync_every_ || at == options_.steps || due(options_.log_every, at) ||
           due(options_.evaluate_every, at) || due(options_.checkpoint_every, at);
  }

  void one_step() {
    LoopState& state = result_.state;
    next_profiled_step();
    const ProfileRange range(ProfileLevel::phases, "step", {{"step", state.step + 1}});
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
    const ProfileRange range(ProfileLevel::phases, "read losses");
    const double start = now();
    std::vector<Tensor> results;
    for (const Step& step : unread_) results.push_back(step.loss_and_norm);
    if (ranks_->world() > 1) results.push_back(exchange_signals());
    const Tensor host = torch::stack(results).cpu();
    seconds_ += now() - start;
    if (ranks_->world() > 1) use_signals(host[-1]);
    const double* value = host.const_data_ptr<double>();
    std::vector<Step> steps = std::exchange(unread_, {});
    for (Step& step : steps) {
      step.loss = *value++, step.norm = *value++;
      tokens_ += step.tokens;
    }
    result_.tokens_per_second = static_cast<double>(tokens_) / seconds_;
    for (const Step& step : steps) account(step);
  }

  // double [2], summed over the ranks: whether a signal arrived, and the seconds per step since the read before.
  Tensor exchange_signals() {
    const double time = now(), seconds = (time - last_read_) / static_cast<double>(std::max<size_t>(1, unread_.size()));
    last_read_ = time;
    const Tensor signals = torch::tensor({interrupted() ? 1.0 : 0.0, seconds}, torch::kDouble).to(model_.device());
    ranks_->all_reduce(signals)->wait();
    return signals;
  }

  // All ranks get the same sums, so they stop after the same step and read next after the same step.
  void use_signals(const Tensor& signals) {
    const double* value = signals.const_data_ptr<double>();
    stop_agreed_ = value[0] > 0;
    if (options_.sync_every > 0 || model_.device().is_cpu()) return;
    const double steps = kAgreeEvery * static_cast<double>(ranks_->world()) / std::max(value[1], 1e-6);
    sync_every_ = std::clamp(static_cast<int64_t>(std::min(steps, 1e6)), int64_t{1}, kReadEveryOnDevice);
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
    if (is_logged(step)) log(step);
  }

  void log(const Step& step) {
    if (!hooks_.metrics) return;
    if (!step.not_finite()) {
      Json line{{"step", step.at}, {"loss", step.loss}, {"gradient_norm", step.norm}, {"learning_rate", step.rate}};
      if (!step.order_hash.empty()) line["order_hash"] = step.order_hash;
      hooks_.metrics->write(line);
    }
    Timing timing{step.at, seconds_, result_.tokens_per_second, peak_memory(model_.device()), ranks_->world()};
    if (options_.mfu) timing.mfu = mfu(), timing.mfu_peak = options_.mfu->peak.name;
    hooks_.metrics->write_timing(timing);
  }

  double mfu() const { return options_.mfu->at(result_.tokens_per_second, ranks_->world()); }

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
    report_failed_saves(/*wait=*/false);
    bool best = false;
    if (due(options_.evaluate_every, state.step)) best = evaluate();
    if (!hooks_.checkpoint || !(due(options_.checkpoint_every, state.step) || (best && options_.checkpoint_best))) return;
    require_finite_weights();
    // A failed save does not end the run: earlier checkpoints still exist, and the next save may succeed.
    const std::string failure = save();
    if (!failure.empty()) report({state.step, failure});
  }

  void report(const FailedSave& failed) {
    ++result_.failed_saves;
    log_warning("the checkpoint of step " + std::to_string(failed.step) + " could not be saved (" + std::to_string(result_.failed_saves) +
                " so far); earlier checkpoints are kept and training continues: " + failed.reason);
  }

  void report_failed_saves(bool wait) {
    if (!hooks_.failed_save) return;
    while (const std::optional<FailedSave> failed = hooks_.failed_save(wait)) {
      if (wait && failed->step == result_.state.step)
        result_.last_save_failure = failed->reason;
      else
        report(*failed);
    }
  }

  // Returns whether this evaluation is the best so far.
  bool evaluate() {
    if (!hooks_.evaluate) return false;
    const ProfileRange range(ProfileLevel::phases, "evaluation", {{"step", result_.state.step}});
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
    const auto found = state.evaluation.find(options_.best_figure);
    if (found == state.evaluation.end()) return false;
    const double value = found->second;
    const bool better = options_.best_is_highest ? value > state.best_loss : value < state.best_loss;
    if (state.best_step >= 0 && !better) return false;
    state.best_step = state.step;
    state.best_loss = value;
    return true;
  }

  // Returns the reason of a failure, or "".
  std::string save() {
    const ProfileRange range(ProfileLevel::phases, "save", {{"step", result_.state.step}});
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
    if (options_.mfu) fields.emplace_back("MFU", format_number(100 * mfu(), 1) + " %");
    for (const auto& [key, value] : state.evaluation)
      if (!key.starts_with("slice_")) fields.emplace_back("eval " + key, format_number(value, 3));  // slices are only in the metrics
    progress_.update(state.step, fields);
  }

  LanguageModel& model_;
  AdamW& optimizer_;
  const OptimizerOptions& schedule_;
  const LoopOptions& options_;
  const LoopHooks& hooks_;
  const std::shared_ptr<Collectives> ranks_;
  const bool look_;  // whether each batch's loss is read before its backward pass
  int64_t sync_every_;
  TrainStep step_;
  std::vector<Step> unread_;  // steps whose figures have not been read yet, in order
  Progress progress_;
  LoopResult result_;
  Figures last_figures_;  // all figures of the last evaluation, finite or not
  const double start_ = now();
  double seconds_ = 0, last_read_ = start_;
  int64_t tokens_ = 0, saved_ = -1;
  bool stop_agreed_ = false;  // with several ranks: a signal arrived at one of them
  bool done_ = false;         // the last result of hooks_.done
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
