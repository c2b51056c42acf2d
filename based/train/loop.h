// The training loop of all runs: batches, optimizer steps, progress line, metrics, periodic evaluation and checkpoints, and a clean stop at
// Ctrl-C. Several ranks run the same loop: losses, norms and decisions are those of the whole job. LoopState is the loop's whole state: a
// loop that starts from a saved LoopState continues as if it had never stopped.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "based/train/metrics.h"
#include "based/train/step.h"
#include "based/train/throughput.h"

namespace based {

struct LoopOptions {
  int64_t steps = 0;
  int64_t accumulate = 1;        // batches per step and rank; the loss is the mean over all labels of the step
  int64_t evaluate_every = 0;    // 0: only at the end
  int64_t checkpoint_every = 0;  // 0: only at the end
  bool checkpoint_best = false;  // also save a checkpoint after the best evaluation so far
  // The figure of an evaluation that must be lowest, or with `best_is_highest` highest, in the best one.
  std::string best_figure = "loss";
  bool best_is_highest = false;
  int64_t log_every = 10;      // steps between lines of the metrics
  int64_t max_bad_steps = 10;  // the run ends after this many consecutive steps with a loss or gradient that is not finite
  // Most steps between reads of losses, which wait for the GPU. 0: 1 on the CPU and 32 on a GPU; several ranks on GPUs also read once a
  // second, since that is when they agree whether a signal arrived.
  int64_t sync_every = 0;
  int64_t epoch_steps = 0;      // see learning_rate
  bool spikes = true;           // warn of losses far above the previous ones; turn off if batches differ in difficulty
  TrainStepOptions step = {};   // with the ranks of the job
  std::optional<Mfu> mfu = {};  // if set, timing.jsonl and the progress line have the MFU
  std::string label = "train";  // label of the progress line
  std::string weights_file;     // file that the weights were loaded from, for messages; empty: randomly initialized
};

using Figures = std::map<std::string, double>;

// A sliding window of losses that detects spikes. The caller adds finite losses only.
class LossWindow {
 public:
  // Returns how many standard deviations `loss` is above the mean of the window, then adds it to the window. The standard deviation is
  // taken as at least 0.05 nats. Returns 0 while the window has fewer than 32 entries.
  double add(double loss);

  template <class Visitor>
  void visit(Visitor&& field) {
    field("losses", losses_, "losses of the latest steps, oldest first");
  }

 private:
  std::vector<double> losses_;
};

struct LoopState {
  int64_t step = 0;                                       // steps done
  int64_t tokens = 0;                                     // tokens trained on
  int64_t skipped = 0, skipped_in_a_row = 0, spikes = 0;  // numbers of steps
  double loss = 0;                                        // loss of the last step that was not skipped
  int64_t best_step = -1;                                 // step of the best evaluation; −1: none yet
  double best_loss = 0;                                   // its loss, or LoopOptions::best_figure
  Figures evaluation;                                     // the last evaluation's finite figures
  LossWindow window;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("step", step, "steps done");
    field("tokens", tokens, "tokens trained on");
    field("skipped", skipped, "steps whose update was skipped: loss or gradient not finite");
    field("skipped_in_a_row", skipped_in_a_row, "consecutive skipped steps up to now");
    field("spikes", spikes, "steps whose loss was far above the previous losses");
    field("loss", loss, "loss of the last step that was not skipped");
    field("best_step", best_step, "step of the best evaluation; -1: none yet");
    field("best_loss", best_loss, "loss of the best evaluation, or the figure that it was chosen by");
    field("evaluation", evaluation, "figures of the last evaluation");
    field("window", window, "recent losses, for the detection of spikes");
  }
};

struct FailedSave {
  int64_t step = 0;
  std::string reason;
};

struct LoopHooks {
  std::function<Batch(int64_t index)> batch;               // index: step·accumulate + the batch's index within the step
  std::function<std::string()> order_hash;                 // Loader::order_hash after the latest batch, for metrics; may be null
  std::function<Figures(int64_t step)> evaluate;           // may be null; LoopOptions::best_figure chooses the best
  std::function<void(const LoopState& state)> checkpoint;  // may be null; if it throws Error, the failure is reported and counted
  // For a `checkpoint` that returns before its save has ended: the next save that failed and was not returned before. `wait`: waits for the
  // save that is running. May be null.
  std::function<std::optional<FailedSave>(bool wait)> failed_save;
  Metrics* metrics = nullptr;                            // may be null
  std::function<bool(const LoopState& state)> done;      // called after an evaluation: whether to end the run; may be null
  std::function<void(const LoopState& state)> progress;  // called instead of updating the loop's progress line; may be null
};

struct LoopResult {
  LoopState state;
  bool interrupted = false;                   // by SIGINT or SIGTERM; the current step was finished and saved
  int64_t failed_saves = 0;                   // checkpoints before the last that could not be saved
  std::string last_save_failure;              // why the final state could not be saved; empty if it was saved
  double seconds = 0, tokens_per_second = 0;  // time and throughput of this call, of all ranks together
  int64_t peak_memory = 0;                    // bytes, of this rank; see models/device.h
};

// Training cannot continue: too many consecutive steps were skipped, or the weights or the last evaluation are not finite.
class Diverged : public Error {
 public:
  Diverged(const std::string& message, LoopResult until_now) : Error(message), result(std::move(until_now)) {}
  LoopResult result;  // covers the steps up to the divergence
};

// Trains from `state` up to options.steps. A step whose loss or gradient is not finite updates only the counters. The weights are checked
// before each evaluation and checkpoint, so that neither uses weights that are not finite. Throws Diverged, naming the batches or the
// weights, and Error if the weights are not finite before the first step. On a GPU the loop launches steps without waiting for their
// losses. It reads the losses when a line of metrics, an evaluation or a checkpoint is due, and at least every sync_every steps. The result
// does not depend on that, except that a run with too many bad steps may have launched a few more before it ends.
//
// All ranks must call this with equal arguments, apart from their batches, metrics and progress. A signal that stops one rank stops all of
// them after the same step.
LoopResult train_loop(LanguageModel& model, AdamW& optimizer, const OptimizerOptions& schedule, const LoopOptions& options,
                      const LoopHooks& hooks, LoopState state = {});

}  // namespace based
