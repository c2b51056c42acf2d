// Checks of a text run: of its keys, and of a checkpoint that it is to be resumed from.
#pragma once
#include <string>

#include "based/data/tokenizer.h"
#include "based/train/run_state.h"
#include "based/train/text_run.h"

namespace based {

// Throws UsageError for keys that are out of range or contradict one another, or do not suit this number of ranks.
void check_run(const TextRun& run, int64_t ranks);

// The same, and Error if a path of the data names nothing: all that can be known before the ranks of a job are started.
void check_before_start(const TextRun& run, int64_t ranks);

// Checks the keys of [model], which may be absent beside train.start.
void check_model_table(const TextRun& run);
// The keys of [model], checked for unknown keys and values out of range; vocab_size is not known yet. Without [model] they are those of the
// model in the folder `start`, if that is not empty.
Config checked_model_keys(const TextRun& run, const std::string& start);
// The config of the model in the folder train.start. Throws UsageError unless it has full weights and this tokenizer.
ModelConfig checked_start(const TextRun& run, const Tokenizer& tokenizer);

// Throws Error on every rank, as agree() does, naming the first key that differs. The paths of the data may differ: hosts may keep equal
// data in different places. A collective operation.
void agree_on_keys(Collectives& ranks, const TextRun& run);

struct ResumedRun {
  const TextRun& run;     // with a complete model config
  std::string out, from;  // the run's folder, and the checkpoint's
  std::string data_hash;
  torch::Device device;
  int64_t ranks = 1;
};
// Loads the checkpoint's state. Throws UsageError if a key that affects the result, or the data, is not that of the checkpoint. Logs the
// differences that change only rounding.
RunState load_resumed_state(const ResumedRun& resumed);

// Adds a return to the state's step and the windows that it leaves out to state.restarts. `windows`: the number that all steps of the run
// train on. Throws UsageError for a range that is not in order, has been delivered already, or reaches beyond the run.
void add_restart(RunState& state, const std::vector<WindowRange>& skip, int64_t windows);

// The windows that a later checkpoint leaves out and the one that the run returned to does not, as flags of `based train`; empty: none.
std::string dropped_windows(const RunState& later, const RunState& returned);

}  // namespace based
