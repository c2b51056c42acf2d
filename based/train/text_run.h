// `based train CONFIG.toml`: trains a language model on text, with data, training loop, checkpoints and the model's folder.
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
    field("batch", batch, "rows per step");
    field("length", length, "tokens per row");
    field("accumulate", accumulate, "gradient accumulation: number of parts that a step's rows are split into, to save memory");
    field("device", device, "cpu, cuda or cuda:N; --device sets it too");
    field("precision", precision, "fp32, or bf16: weights and activations in bf16, updates and sums in fp32");
    field("checkpoint_activations", checkpoint_activations, "store only each layer's input and recompute the rest in the backward pass");
    field("graph", graph, "record the first step as a CUDA graph and replay it: faster for models so small that the GPU waits for the CPU");
    field("seed", seed, "seed of the initial weights, of dropout and of the order of the data");
    field("evaluate_every", evaluate_every, "steps between evaluations on held-out text; 0: only at the end");
    field("evaluate_batches", evaluate_batches, "batches of held-out text per evaluation");
    field("log_every", log_every, "steps between lines of metrics.jsonl");
    field("max_bad_steps", max_bad_steps, "the run ends after this many consecutive steps with a loss or gradient that is not finite");
  }
};

struct CheckpointConfig {
  int64_t every = 0, keep = 2;
  bool best = true;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("every", every, "steps between checkpoints; 0: only at the end and at a signal");
    field("keep", keep, "how many of the newest checkpoints are kept");
    field("best", best, "also save and keep the checkpoint with the best evaluation");
  }
};

struct TextRun {
  Config model;  // see read_model_config; vocab_size is set from the tokenizer
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
  int64_t resumed_from = -1;  // step of the checkpoint that the run resumed from; −1: it started from step 0
  std::string checkpoint;     // folder of the last checkpoint; empty: none
  std::string failure;        // why the run failed, and which files are kept; empty if it succeeded
  std::shared_ptr<LanguageModel> model;
};

// Locks `out` and writes to it config.json, model.safetensors, the tokenizer's files, run.json (all keys), metrics (metrics.h) and
// checkpoints/ (checkpoints.h, run_state.h). Before anything is written, throws UsageError for an invalid config, and Error if another run
// holds the lock or the data cannot be used. If the run diverges, no final model is written. If the last checkpoint cannot be saved, the
// model is written nevertheless. TextRunResult::failure reports both cases.
//
// `resume`: continues from the newest complete checkpoint in `out`. On the same device the result is bit for bit that of a run that never
// stopped; on another device the values are the same but rounding differs. Throws UsageError if a key that affects the result or the data
// has changed. If there is no checkpoint, the run starts from step 0 and logs that. Without `resume`, a folder with checkpoints is refused
// with UsageError.
//
// If `out` holds a model without checkpoints, or another tokenizer than the run's, UsageError is thrown, unless `overwrite` is set: then
// the model is removed before the run starts. Also throws UsageError if model.vocab_size is set and is not the tokenizer's size.
TextRunResult run_text_training(const TextRun& run, const std::string& out, bool resume = false, bool overwrite = false);

}  // namespace based
