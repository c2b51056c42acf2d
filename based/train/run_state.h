// What a checkpoint holds, besides the model and its tokenizer, so that a run goes on as if it had never stopped:
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
  std::string data_hash;  // of the tokens trained on
  int64_t threads = 0;    // another number may round differently
  Config run;             // the run's keys, defaults included

  template <class Visitor>
  void visit(Visitor&& field) {
    field("loop", loop, "");
    field("data", data, "");
    field("metrics", metrics, "");
    field("data_hash", data_hash, "of the tokens trained on");
    field("threads", threads, "that the sums were made with");
    field("run", run, "the run's keys, defaults included");
  }
};

// Both files, synced. Throws Error.
void save_run_state(const std::string& folder, const RunState& state, const AdamW& optimizer);

RunState load_run_state(const std::string& folder);
// Fills an optimizer made for the same model, on any device. Throws Error naming what is missing, left over or misshapen.
void load_optimizer(const std::string& folder, AdamW& optimizer);

}  // namespace based
