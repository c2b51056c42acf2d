// The files of a checkpoint beside the model and its tokenizer. With them a resumed run continues as if it had never stopped:
//   trainer.json             RunState
//   optimizer.safetensors    moments, step counts and fp32 masters of every parameter
#pragma once
#include <string>

#include "based/data/loader.h"
#include "based/train/loop.h"

namespace based {

struct RunState {
  LoopState loop;
  LoaderPosition data;
  MetricsPosition metrics;
  std::string data_hash;  // hash of the training and held-out tokens
  int64_t threads = 0;    // CPU threads of the run; another number may round differently
  Config run;             // the run's keys, defaults included

  template <class Visitor>
  void visit(Visitor&& field) {
    field("loop", loop, "");
    field("data", data, "");
    field("metrics", metrics, "");
    field("data_hash", data_hash, "hash of the training and held-out tokens");
    field("threads", threads, "CPU threads of the run; another number may round differently");
    field("run", run, "the run's keys, defaults included");
  }
};

// Writes and syncs both files. Throws Error.
void save_run_state(const std::string& folder, const RunState& state, const AdamW& optimizer);

RunState load_run_state(const std::string& folder);
// Loads the state of an optimizer that was made for the same model, on any device. Throws Error naming a tensor that is missing or has a
// wrong shape or type, and for a wrong number of tensors.
void load_optimizer(const std::string& folder, AdamW& optimizer);

}  // namespace based
