// Training a language model on text files, as `based train CONFIG.toml` does: tokenizer, windows of tokens, loop, the model's folder.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/train/loop.h"

namespace based {

struct TextDataConfig {
  std::string train;              // UTF-8 text file, relative to the working folder
  std::string valid;              // held-out text; empty: the end of `train`
  double valid_fraction = 0.05;   // of `train`, where there is no `valid`
  std::string tokenizer = "bpe";  // bpe: learnt from `train`; bytes; or a tokenizer's folder
  int64_t bpe_vocab_size = 1024;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("train", train, "text file, relative to the working folder");
    field("valid", valid, "held-out text file; empty: the end of train is held out");
    field("valid_fraction", valid_fraction, "share of train that is held out where there is no valid");
    field("tokenizer", tokenizer, "bpe: learnt from train; bytes; or a tokenizer's folder");
    field("bpe_vocab_size", bpe_vocab_size, "tokens that a learnt tokenizer has");
  }
};

struct TextTrainConfig {
  int64_t steps = 1000, batch = 8, length = 256;
  int64_t seed = 0;
  int64_t evaluate_every = 200, evaluate_batches = 8, log_every = 10;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("steps", steps, "optimizer steps");
    field("batch", batch, "rows a step");
    field("length", length, "tokens a row");
    field("seed", seed, "of the initial weights and of the order of the data");
    field("evaluate_every", evaluate_every, "steps between evaluations on held-out text; 0: only at the end");
    field("evaluate_batches", evaluate_batches, "batches of held-out text an evaluation");
    field("log_every", log_every, "steps between lines of metrics.jsonl");
  }
};

struct CheckpointConfig {
  int64_t every = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("every", every, "steps between saves of the model; 0: only at the end");
  }
};

struct TextRun {
  Config model;  // see read_model_config; vocab_size follows the tokenizer
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
  std::shared_ptr<LanguageModel> model;
};

// Leaves in `out`: config.json, model.safetensors, the tokenizer's files, metrics.jsonl and run.toml's values as run.json. Throws
// UsageError for a wrong config before anything is written.
TextRunResult run_text_training(const TextRun& run, const std::string& out);

}  // namespace based
