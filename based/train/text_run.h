// `based train CONFIG.toml`: trains a language model on text, with data, training loop, checkpoints and the model's folder.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "based/parallel/collectives.h"
#include "based/train/text_data.h"

namespace based {

struct TextTrainConfig {
  std::string start;
  int64_t steps = 1000, batch = 8, length = 256;
  int64_t accumulate = 1;
  bool shard = false;
  int64_t bucket_mb = 0;
  std::string device = "cpu", precision = "fp32";
  bool checkpoint_activations = false, graph = false;
  int64_t seed = 0;
  int64_t evaluate_every = 200, evaluate_batches = 8, log_every = 10;
  std::vector<int64_t> slices;
  int64_t max_bad_steps = 10;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("start", start,
          "a model's folder whose weights training starts from, with data.tokenizer as its tokenizer; empty: initial weights, by [model]");
    field("steps", steps, "optimizer steps");
    field("batch", batch, "rows per step, over all devices");
    field("length", length, "tokens per row");
    field("accumulate", accumulate,
          "gradient accumulation: number of parts that each device's rows of a step are split into, to save memory");
    field(
        "bucket_mb", bucket_mb,
        "several devices: MiB of gradients that are summed over the devices at once, while the backward pass computes others; a size above "
        "that of the model sums all after it; 0: all after it on GPUs of one host, else 25");
    field("shard", shard, "several devices: each stores and updates a part of the moments and masters (ZeRO-1), to save memory");
    field("device", device, "cpu, cuda or cuda:N; --device sets it too");
    field("precision", precision, "fp32, or bf16: weights and activations in bf16, updates and sums in fp32");
    field("checkpoint_activations", checkpoint_activations, "store only each layer's input and recompute the rest in the backward pass");
    field("graph", graph, "record the first step as a CUDA graph and replay it: faster for models so small that the GPU waits for the CPU");
    field("seed", seed, "seed of the initial weights, of dropout and of the order of the data");
    field("evaluate_every", evaluate_every, "steps between evaluations on held-out text; 0: only at the end");
    field("evaluate_batches", evaluate_batches, "batches of held-out text per evaluation");
    field(
        "slices", slices,
        "thresholds of the slices AR and Other that each evaluation reports, as `based perplexity --slices` does: pairs seen more often in "
        "training are Other; empty: no slices");
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
    field("model", model, "preset = \"name\" and keys that override it, or all keys of a model; with train.start it may be absent");
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
  double save_seconds = 0;    // time that checkpoints held up training: copies of the state, and waits for the save before
  std::string failure;        // why the run failed, and which files are kept; empty if it succeeded
  std::shared_ptr<LanguageModel> model;
};

struct TextRunOptions {
  bool resume = false;     // continue from the newest complete checkpoint in `out`
  bool overwrite = false;  // replace a model or a tokenizer in `out`
  // Continue from the checkpoint of this step instead; later checkpoints are renamed, not removed. −1: as `resume` says.
  int64_t resume_from = -1;
  std::vector<WindowRange> skip = {};       // with resume_from: places of the order of the data that the run leaves out from then on
  std::shared_ptr<Collectives> ranks = {};  // the job's ranks; null: this process trains alone
  bool one_host = false;                    // whether all ranks are known to be on this host
  std::string device = {};                  // this rank's device; empty: train.device
  std::function<void(const LoopState& state)> progress = {};  // called on rank 0 instead of updating the progress line; may be null
  // Called by the thread that writes a checkpoint, with the checkpoint's folder, before it writes the files; may be null.
  std::function<void(const std::string& folder)> before_write = {};
};

// Locks `out` and writes to it config.json, model.safetensors, the tokenizer's files, run.json (all keys), metrics (metrics.h) and
// checkpoints/ (checkpoints.h, run_state.h). Before anything is written, throws UsageError for an invalid config, and Error if another run
// holds the lock or the data cannot be used. If the run diverges, no final model is written. If the last checkpoint cannot be saved, the
// model is written nevertheless. TextRunResult::failure reports both cases.
//
// With several ranks, all call this with the same run and folder. They divide each step's rows, and the result is that of one rank up to
// rounding. Only rank 0 writes files; the others read checkpoints, so all need the folder. Before the first step the ranks compare hashes
// of their keys, data, position and weights, and all throw Error naming a rank that differs. After an exception the job cannot continue.
//
// `resume`: continues from the newest complete checkpoint in `out`. On the same device the result is bit for bit that of a run that never
// stopped; on another device the values are the same but rounding differs. Throws UsageError if a key that affects the result or the data
// has changed. If there is no checkpoint, the run starts from step 0 and logs that. Without `resume`, a folder with checkpoints is refused
// with UsageError. train.accumulate, train.shard, train.device and the number of ranks may change: each step has the same windows.
//
// If `out` holds a model without checkpoints, or another tokenizer than the run's, UsageError is thrown, unless `overwrite` is set: then
// the model is removed before the run starts. Also throws UsageError if model.vocab_size is set and is not the tokenizer's size.
TextRunResult run_text_training(const TextRun& run, const std::string& out, const TextRunOptions& options = {});

}  // namespace based
