// `based train CONFIG.toml` with a table [classification]: trains a classifier of sequences, from scratch or from a pretrained model.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/data/class_metrics.h"
#include "based/data/labelled_sequences.h"
#include "based/train/classification_model.h"
#include "based/train/text_run.h"

namespace based {

struct ClassificationConfig {
  std::string train, dev, test;
  double dev_fraction = 0.1;
  std::string pretrained;
  std::string tokenizer = "dna";
  std::string pooling = "mean";
  double reverse_complement = 0;
  std::string select = "mcc";

  template <class Visitor>
  void visit(Visitor&& field) {
    field("train", train, "training set: a CSV file with the columns sequence and label, or a folder with a folder for each class");
    field("dev", dev, "set that chooses the model and nothing else; empty: a share of train, drawn by train.seed");
    field("dev_fraction", dev_fraction, "share of train that is held out if dev is empty");
    field("test", test, "set that is measured once, after training; empty: none");
    field("pretrained", pretrained, "a model's folder that training starts from, with its tokenizer; empty: from scratch, by [model]");
    field("tokenizer", tokenizer, "without pretrained: dna, bytes or a tokenizer's folder");
    field("pooling", pooling, "input of the head: mean, over a sequence's positions, or last, the last position");
    field("reverse_complement", reverse_complement, "DNA: chance that a training sequence is replaced by its reverse complement");
    field("select", select, "figure on dev that chooses the model: mcc, f1, accuracy or loss");
  }
};

struct ClassificationTrainConfig {
  int64_t epochs = 10, batch = 32;
  std::string device = "cpu", precision = "fp32";
  int64_t seed = 0;
  int64_t evaluate_every = 0, log_every = 10, max_bad_steps = 10;
  bool graph = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("epochs", epochs, "passes over the training set");
    field("batch", batch, "sequences per step");
    field("device", device, "cpu, cuda or cuda:N; --device sets it too");
    field("precision", precision, "fp32, or bf16: weights and activations in bf16, updates and sums in fp32");
    field("seed", seed, "seed of the initial weights, the order, the reverse complements and the share for dev");
    field("evaluate_every", evaluate_every, "steps between evaluations on dev; 0: after each epoch");
    field("log_every", log_every, "steps between lines of metrics.jsonl");
    field("max_bad_steps", max_bad_steps, "the run ends after this many consecutive steps with a loss or gradient that is not finite");
    field("graph", graph,
          "record the first step as a CUDA graph and replay it: faster where the GPU waits for the CPU; all training sequences must have "
          "one length");
  }
};

struct ClassificationCheckpoints {
  int64_t every = 0, keep = 1;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("every", every, "steps between checkpoints; 0: only after the best evaluation, at the end and at a signal");
    field("keep", keep, "how many of the newest checkpoints are kept, beside the best");
  }
};

struct ClassificationRun {
  Config model;
  ClassificationConfig classification;
  OptimizerOptions optimizer;
  ClassificationTrainConfig train;
  ClassificationCheckpoints checkpoint;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("model", model,
          "preset = \"name\" and keys that override it, or all keys of a model; with classification.pretrained it may be absent");
    field("classification", classification, "");
    field("optimizer", optimizer, "");
    field("train", train, "");
    field("checkpoint", checkpoint, "");
  }
};

bool is_classification(const Config& config);  // whether it has a table [classification]

// The figures of a whole set.
struct ClassFigures {
  ConfusionMatrix confusion;
  double loss = 0;  // mean nats

  Json to_json() const;  // cases, accuracy, mcc, f1 (macro), loss, confusion [label][prediction]
};

struct ClassificationResult {
  LoopResult loop;
  std::vector<std::string> classes;
  std::string device;  // the GPU's name, or "cpu"
  int64_t parameters = 0, train_sequences = 0, dev_sequences = 0, test_sequences = 0;
  int64_t resumed_from = -1;         // step of the checkpoint; −1: the run started from step 0
  std::string checkpoint;            // folder of the last checkpoint
  std::optional<ClassFigures> dev;   // the chosen model's figures
  std::optional<ClassFigures> test;  // the chosen model's figures
  std::string failure;               // why the run failed; empty if it succeeded
  Json to_json() const;              // everything but loop and checkpoint
};

struct ClassificationOptions {
  bool resume = false;                                        // continue from the newest complete checkpoint in `out`
  bool overwrite = false;                                     // replace a model or a tokenizer in `out`
  std::function<void(const LoopState& state)> progress = {};  // called instead of updating the progress line; may be null
};

// Trains on `train`, measures `dev` at each evaluation, and writes the model of the best one to `out` (save_classifier), with run.json,
// metrics, checkpoints/ and result.json, which has the figures of that model on dev and test. The test set has no other use. A batch is
// packed: sequences follow one another without padding. Class numbers are places in the sorted list of the training set's labels. Whether a
// sequence is reversed depends on the seed, the sequence and the epoch alone. A resumed run is bit for bit that of one that never stopped.
// Throws UsageError for a wrong config, Error for files that cannot be used, both before anything is written.
ClassificationResult run_classification(const ClassificationRun& run, const std::string& out, const ClassificationOptions& options = {});

// The figures of the whole set, which is read in groups of about 16,384 tokens.
ClassFigures measure_classes(Classifier& classifier, const LabelledTokens& data);

}  // namespace based
