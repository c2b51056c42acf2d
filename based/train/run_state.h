// The files of a checkpoint beside the model and its tokenizer. With them a resumed run continues as if it had never stopped:
//   trainer.json             RunState
//   optimizer.safetensors    moments, step counts and fp32 masters of every parameter, whole for any number of ranks
#pragma once
#include <string>
#include <vector>

#include "based/data/loader.h"
#include "based/models/weights.h"
#include "based/train/loop.h"

namespace based {

// A return to an earlier checkpoint by --resume-from, with the windows that the run leaves out from then on. Several ranges are several
// entries; first == last: none.
struct Restart {
  int64_t step = 0;             // the checkpoint's step
  int64_t first = 0, last = 0;  // places first … last − 1 of the order of the data

  template <class Visitor>
  void visit(Visitor&& field) {
    field("step", step, "step of the checkpoint that the run returned to");
    field("first", first, "first place in the order of the data that is skipped");
    field("last", last, "the place after the last one that is skipped");
  }
};

struct RunState {
  LoopState loop;
  LoaderPosition data;
  MetricsPosition metrics;
  std::string data_hash;  // hash of the training and held-out tokens
  int64_t threads = 0;    // CPU threads of the run; another number may round differently
  int64_t devices = 0;    // ranks of the run; 0: saved by a version that did not record it
  std::vector<Restart> restarts;
  std::vector<std::string> zero_moments;  // moments that are all zero although their parameter was updated
  std::vector<std::string> other_steps;   // step counts that differ from the run's updates, as of a parameter without a gradient
  std::string optimizer_hash;             // covers the names and bytes of the optimizer's tensors; empty: saved by a version without it
  Config run;                             // the run's keys, defaults included

  template <class Visitor>
  void visit(Visitor&& field) {
    field("loop", loop, "");
    field("data", data, "");
    field("metrics", metrics, "");
    field("data_hash", data_hash, "hash of the training and held-out tokens");
    field("threads", threads, "CPU threads of the run; another number may round differently");
    field("devices", devices, "ranks of the run");
    field("restarts", restarts, "returns to earlier checkpoints, and the windows that were left out");
    field("zero_moments", zero_moments, "tensors of optimizer.safetensors that are all zero although their parameter was updated");
    field("other_steps", other_steps, "tensors of optimizer.safetensors with another step count than the run's updates");
    field("optimizer_hash", optimizer_hash, "hash of the tensors of optimizer.safetensors");
    field("run", run, "the run's keys, defaults included");
  }
};

std::vector<WindowRange> skipped_windows(const RunState& state);

// The optimizer's tensors and their names in optimizer.safetensors. `sharded`: several ranks share the state (ZeRO-1); then this is a
// collective operation, and only rank 0 gets the tensors, which are new ones on the CPU. Otherwise they are the optimizer's own, not
// copies.
NamedTensors optimizer_tensors(AdamW& optimizer, bool sharded = false);

// Writes and syncs both files. Sets zero_moments, other_steps and optimizer_hash in the file. Throws Error.
void save_run_state(const std::string& folder, RunState state, const NamedTensors& optimizer);
void save_run_state(const std::string& folder, const RunState& state, AdamW& optimizer);

// Throws Error naming the file and the field if the fields contradict one another.
RunState load_run_state(const std::string& folder);
// Loads the state of an optimizer that was made for the same model, on any device and any number of ranks. Throws Error naming a tensor
// that is missing, has a wrong shape or type, is all zero though it was not when the checkpoint was saved, or holds a moment that is not
// finite or a second moment below 0; also for step counts and an order of the data that contradict trainer.json, for a wrong number of
// tensors, and for any other difference from the saved tensors. After an exception the optimizer must not be used.
void load_optimizer(const std::string& folder, AdamW& optimizer);

}  // namespace based
