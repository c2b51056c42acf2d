// The training loop that every run shares: batches in, optimizer steps, a progress line, metrics as JSON lines, evaluation and checkpoints
// at their steps, a clean stop at Ctrl-C.
#pragma once
#include <functional>
#include <string>

#include "based/core/json.h"
#include "based/models/language_model.h"
#include "based/train/optimizer.h"

namespace based {

struct Batch {
  Tensor ids, labels;  // int64 [tokens]; label −100: none
  Sequences rows;
};

struct LoopOptions {
  int64_t steps = 0;
  int64_t evaluate_every = 0;    // 0: only at the end
  int64_t checkpoint_every = 0;  // 0: only at the end
  int64_t log_every = 10;
  std::string metrics_path;     // JSON lines are appended here; empty: none
  std::string label = "train";  // of the progress line
};

struct LoopHooks {
  std::function<Batch(int64_t step)> batch;
  std::function<Json(int64_t step)> evaluate;    // null: none; its fields go into the metrics and, where named "loss", the line
  std::function<void(int64_t step)> checkpoint;  // null: none
};

struct LoopResult {
  int64_t steps = 0;         // done
  bool interrupted = false;  // by SIGINT or SIGTERM; the step under way was finished
  double seconds = 0, loss = 0, tokens_per_second = 0;
  Json evaluation;  // the last one
};

// Throws Error where the loss or a gradient is not finite, naming the step.
LoopResult train_loop(LanguageModel& model, AdamW& optimizer, const OptimizerOptions& schedule, const LoopOptions& options,
                      const LoopHooks& hooks);

}  // namespace based
