// Training a language model on text, as `based train CONFIG.toml` does: data, loop, checkpoints, the model's folder.
#pragma once
#include <memory>
#include <string>

#include "based/train/text_data.h"

namespace based {

struct TextTrainConfig {
  int64_t steps = 1000, batch = 8, length = 256;
  int64_t accumulate = 1;
  std::string device = "cpu", precision = "fp32";
  bool checkpoint_activations = false, graph = false;
  int64_t seed = 0;
  int64_t evaluate_every = 200, evaluate_batches = 8, log_every = 10;
  int64_t max_bad_steps = 10;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("steps", steps, "optimizer steps");
    field("batch", batch, "rows a step");
    field("length", length, "tokens a row");
    field("accumulate", accumulate, "parts that a step's rows are worked through in, one after another: less memory, the same gradient");
    field("device", device, "cpu, cuda or cuda:N; --device sets it too");
    field("precision", precision, "fp32, or bf16: weights and activations in bf16, updates and sums in fp32");
    field("checkpoint_activations", checkpoint_activations, "keep only each layer's input and compute the rest again in the backward pass");
    field("graph", graph,
          "record the first step on a GPU as a CUDA graph and replay it: for models so small that the GPU waits for the host");
    field("seed", seed, "of the initial weights and of the order of the data");
    field("evaluate_every", evaluate_every, "steps between evaluations on held-out text; 0: only at the end");
    field("evaluate_batches", evaluate_batches, "batches of held-out text an evaluation");
    field("log_every", log_every, "steps between lines of metrics.jsonl");
    field("max_bad_steps", max_bad_steps, "so many steps in a row whose loss or gradient is not finite end the run");
  }
};

struct CheckpointConfig {
  int64_t every = 0, keep = 2;
  bool best = true;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("every", every, "steps between checkpoints; 0: only at the end and at a signal");
    field("keep", keep, "how many of the newest checkpoints stay");
    field("best", best, "save and keep the one whose evaluation is the best, too");
  }
};

struct TextRun {
  Config model;  // see read_model_config; vocab_size is the tokenizer's
  TextDataConfig data;
  OptimizerOptions optimizer;
  TextTrainConfig train;
  CheckpointConfig checkpoint;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("model", model, "preset = \"name\" and keys that override it, or all keys of a model");
    field("data", data, "");
    field("optimizer", optimizer, "");
    field("train", train, "");
    field("checkpoint", checkpoint, "");
  }
};

struct TextRunResult {
  LoopResult loop;
  int64_t parameters = 0, train_tokens = 0, valid_tokens = 0;
  int64_t resumed_from = -1;  // the checkpoint's step; −1: began anew
  std::string checkpoint;     // folder of the last one; empty: none
  std::string failure;        // what kept the run from ending well, and what is kept; empty: nothing
  std::shared_ptr<LanguageModel> model;
};

// Leaves in `out`, which is locked from the start: config.json, model.safetensors, the tokenizer's files, run.json (all keys), metrics
// (metrics.h) and checkpoints/ (checkpoints.h, run_state.h). Throws UsageError for a wrong config, and Error where another run writes to
// `out` and for data that cannot be used, before anything is written. A run that diverges leaves no model of its end, and one whose last
// checkpoint cannot be saved leaves its model all the same: both are said in `failure`.
//
// `resume`: goes on from the newest whole checkpoint in `out`, to the same end, bit for bit, as if the run had never stopped (on another
// device from the same values, that is not to the same bits); UsageError where a key that matters or the data has changed. Where there is
// none the run begins anew and says so. Without `resume` a folder that has checkpoints is refused with UsageError.
//
// A model in `out` without checkpoints, or another tokenizer than the run's, is refused with UsageError, unless `overwrite`: then the model
// is removed before the run begins. A model.vocab_size that is not the tokenizer's is refused, too.
TextRunResult run_text_training(const TextRun& run, const std::string& out, bool resume = false, bool overwrite = false);

}  // namespace based
