// The training loop that every run shares: batches in, optimizer steps, a progress line, metrics, evaluation and checkpoints at their
// steps, a clean stop at Ctrl-C. All that the loop itself must remember is LoopState: a loop that starts from a saved one goes on as if it
// had never stopped.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "based/train/metrics.h"
#include "based/train/step.h"

namespace based {

struct LoopOptions {
  int64_t steps = 0;
  int64_t accumulate = 1;        // batches a step; their mean is over all labels of the step
  int64_t evaluate_every = 0;    // 0: only at the end
  int64_t checkpoint_every = 0;  // 0: only at the end
  bool checkpoint_best = false;  // also where an evaluation is the best so far
  int64_t log_every = 10;        // steps between lines of the metrics
  int64_t max_bad_steps = 10;    // so many in a row whose loss or gradient is not finite end the run
  int64_t sync_every = 0;   // steps whose figures are read together, at the latest; 0: 1 on the CPU, 32 on a GPU, which must be waited for
  int64_t epoch_steps = 0;  // see learning_rate
  bool spikes = true;       // look for losses far above those before; batches of unlike data have them by nature
  TrainStepOptions step = {};
  std::string label = "train";  // of the progress line
  std::string weights_file;     // that the weights were read from, for messages; empty: they were drawn
};

using Figures = std::map<std::string, double>;

// Finds losses far above those before. One that is not finite never enters the window.
class LossWindow {
 public:
  // How many standard deviations, of 0.05 nats at least, `loss` lies above the mean of the window, which it then enters; 0 while that has
  // few entries.
  double add(double loss);

  template <class Visitor>
  void visit(Visitor&& field) {
    field("losses", losses_, "of the latest steps, the oldest first");
  }

 private:
  std::vector<double> losses_;
};

struct LoopState {
  int64_t step = 0;                                       // done
  int64_t tokens = 0;                                     // trained on
  int64_t skipped = 0, skipped_in_a_row = 0, spikes = 0;  // steps
  double loss = 0;                                        // of the last step that was not skipped
  int64_t best_step = -1;                                 // of the best evaluation; −1: none yet
  double best_loss = 0;
  Figures evaluation;  // the last one; figures that are not finite are left out
  LossWindow window;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("step", step, "steps done");
    field("tokens", tokens, "tokens trained on");
    field("skipped", skipped, "steps whose update was skipped: loss or gradient not finite");
    field("skipped_in_a_row", skipped_in_a_row, "the last steps, all skipped");
    field("spikes", spikes, "steps whose loss was far above those before");
    field("loss", loss, "of the last step that was not skipped");
    field("best_step", best_step, "of the best evaluation; -1: none yet");
    field("best_loss", best_loss, "of the best evaluation");
    field("evaluation", evaluation, "figures of the last evaluation");
    field("window", window, "losses that a spike is measured against");
  }
};

struct LoopHooks {
  std::function<Batch(int64_t index)> batch;               // index: step·accumulate + its batch within the step
  std::function<Figures(int64_t step)> evaluate;           // null: none; "loss" decides which is the best
  std::function<void(const LoopState& state)> checkpoint;  // null: none. An Error that it throws is reported and counted
  Metrics* metrics = nullptr;
  std::function<bool(const LoopState& state)> done;      // after an evaluation: whether the run ends there. Null: never
  std::function<void(const LoopState& state)> progress;  // as the loop goes on, in place of its line of progress
};

struct LoopResult {
  LoopState state;
  bool interrupted = false;                   // by SIGINT or SIGTERM; the step under way was finished and saved
  int64_t failed_saves = 0;                   // on the way
  std::string last_save_failure;              // why the state at the end could not be saved; empty: it was
  double seconds = 0, tokens_per_second = 0;  // of this call
  int64_t peak_memory = 0;                    // bytes; see models/device.h
};

// What training came to that no later step mends: too many steps in a row that could not be used, weights that are not finite, or a last
// evaluation that is not.
class Diverged : public Error {
 public:
  Diverged(const std::string& message, LoopResult up_to) : Error(message), result(std::move(up_to)) {}
  LoopResult result;  // up to there
};

// Goes on from `state` to options.steps. A step whose loss or gradient is not finite changes nothing but the counters. Throws Diverged,
// naming the batches or the weights; looks at the weights before each evaluation and checkpoint, so that none is made of weights that are
// not finite. Throws Error before the first step where the weights are not finite already. On a GPU the steps are launched ahead, and what
// they gave is read when a line of metrics is due, before an evaluation or a checkpoint, or after sync_every; the result is the same, but
// that a run which ends for too many bad steps may have launched some more.
LoopResult train_loop(LanguageModel& model, AdamW& optimizer, const OptimizerOptions& schedule, const LoopOptions& options,
                      const LoopHooks& hooks, LoopState state = {});

}  // namespace based
