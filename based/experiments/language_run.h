// One training run of a language model, which continues after an interruption or a kill, and its scores on held-out text.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/data/slices.h"
#include "based/experiments/kind.h"
#include "based/train/text_run.h"

namespace based {

// Version of training and scoring, stored with results. Raise it when runs with the same data, model and rate change by more than rounding.
inline constexpr int64_t language_version = 1;

struct LanguageEvaluation {
  std::vector<std::string> held_out;
  std::vector<int64_t> thresholds = {kSliceThreshold};

  template <class Visitor>
  void visit(Visitor&& field) {
    field("held_out", held_out,
          "held-out sets that the trained model is scored on: folders of token shards or text files; empty: data.valid");
    field("thresholds", thresholds,
          "slices AR and Other are given for each: a pair that recurs in its window is AR if it occurs at most so often in the training "
          "data");
  }
};

// The cost of a run: the only part of the outcome in which two executions of the same run differ.
struct LanguageCost {
  std::vector<std::string> cards, commits;  // distinct, in the order of first use
  int64_t pieces = 0;
  double seconds = 0, tokens_per_second = 0;
  int64_t peak_memory = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("cards", cards, "GPUs that the run was trained on; cpu for the CPU");
    field("commits", commits, "commits of the program, as --commit gave them");
    field("pieces", pieces, "processes that worked on the run");
    field("seconds", seconds, "seconds of all pieces that were not killed");
    field("tokens_per_second", tokens_per_second, "training rate of the longest piece, without evaluations and checkpoints");
    field("peak_memory", peak_memory, "bytes; the largest of the pieces'");
  }
};

struct LanguageOutcome {
  double loss = 0;
  std::vector<std::string> sets;
  std::vector<int64_t> tokens;
  std::vector<double> nats;
  std::vector<std::vector<int64_t>> ar_tokens;
  std::vector<std::vector<double>> ar_nats;
  std::vector<int64_t> train_steps, evaluation_steps;
  std::vector<double> train_loss, evaluation_loss;
  int64_t steps = 0, skipped = 0, state_bytes = 0, parameters = 0;
  std::string order_hash;
  std::vector<std::string> held_out_hashes;
  LanguageCost cost;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("loss", loss, "mean nats per token over all held-out sets");
    field("sets", sets, "names of the held-out sets");
    field("tokens", tokens, "predicted tokens of each set");
    field("nats", nats, "sum of -log p over the tokens of each set");
    field("ar_tokens", ar_tokens, "tokens in the slice AR: a row for each threshold, an entry for each set");
    field("ar_nats", ar_nats, "their sum of -log p");
    field("train_steps", train_steps, "steps of the training curve");
    field("train_loss", train_loss, "training loss at these steps");
    field("evaluation_steps", evaluation_steps, "steps of the evaluations during training");
    field("evaluation_loss", evaluation_loss, "loss on data.valid at these steps");
    field("steps", steps, "training steps");
    field("skipped", skipped, "steps whose update was skipped");
    field("state_bytes", state_bytes, "bytes of state after a window");
    field("parameters", parameters, "parameters of the model");
    field("order_hash", order_hash, "hash of the training data and of the order of its windows");
    field("held_out_hashes", held_out_hashes, "hash of each held-out set");
    field("cost", cost, "");
  }

  // Nats per token over all sets; `threshold`: an index into the experiment's thresholds. NaN for an empty slice.
  double ar_loss(size_t threshold) const;
  double other_loss(size_t threshold) const;
  double ar_share(size_t threshold) const;  // AR tokens / all tokens
};

// The held-out sets of an experiment, and the training counts of their pairs. All runs on a device share it.
class LanguageData : public DeviceData {
 public:
  // Throws UsageError for inconsistent keys, Error for files that cannot be used.
  LanguageData(const TextDataConfig& data, const LanguageEvaluation& evaluation, int64_t length, torch::Device device);

  struct HeldOut {
    std::string name;
    std::shared_ptr<const TokenDataset> tokens;
  };
  const std::vector<HeldOut>& held_out() const { return held_out_; }
  const std::shared_ptr<const TokenMixture>& train() const { return train_; }
  const Slices& slices() const { return slices_; }
  torch::Device device() const { return device_; }

 private:
  torch::Device device_;
  std::shared_ptr<const TokenMixture> train_;
  std::vector<HeldOut> held_out_;
  Slices slices_;
};

// Trains in hooks.folder, from the checkpoint there if there is one, and scores the model. nullopt: interrupted. `run.train.device` must be
// the data's device. Calls hooks.trained. Throws Error if the training fails, CannotRun for files that cannot be used, such as checkpoints
// of other data.
std::optional<LanguageOutcome> train_language(const TextRun& run, const LanguageEvaluation& evaluation, const LanguageData& data,
                                              const RunHooks& hooks);

// Throws Error like require_figure for an outcome that no run of `steps` steps on `sets` held-out sets can have.
void check_language_outcome(const Config& outcome, size_t sets, size_t thresholds, int64_t steps, int64_t parameters);

}  // namespace based
