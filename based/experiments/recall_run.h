// One training run on multi-query associative recall. Recall is measured after each epoch.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/data/mqar.h"
#include "based/models/language_model.h"
#include "based/train/optimizer.h"

namespace based {

// Version of the training, stored with results. Raise it when runs with the same data, model and rate change by more than rounding.
inline constexpr int64_t recall_version = 1;

struct RecallSegment {
  int64_t length = 64, pairs = 4, examples = 1000;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("length", length, "tokens per example");
    field("pairs", pairs, "key-value pairs per example");
    field("examples", examples, "number of examples");
  }
};

struct RecallTask {
  int64_t vocab_size = 8192;
  double power_a = 0.01;
  bool random_fillers = true;
  std::string compat = "none";
  int64_t seed = 0, filler_seed = -1;
  std::vector<RecallSegment> train, test;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("vocab_size", vocab_size, "vocabulary size; keys are the lower half, values the upper half");
    field("power_a", power_a, "exponent of the power law of the gaps between a pair and its query");
    field("random_fillers", random_fillers, "fill the gaps with random tokens; otherwise with 0");
    field("compat", compat, "'zoology': the published data, bit for bit; 'none': our data, whose fillers are never keys of the example");
    field("seed", seed, "seed of the data; training and test data never share a stream");
    field("filler_seed", filler_seed, "zoology only: seed of the fillers' separate generator; -1: the same as seed");
    field("train", train, "training segments, in this order within an epoch unless training.shuffle is set");
    field("test", test, "test segments; the reported accuracy is the mean over all their examples");
  }
};

// The training options of all experiments on questions (questions.h).
struct QuestionTraining {
  int64_t epochs = 1, batch = 256;
  bool shuffle = false;
  double stop_above = 1;
  std::string precision = "fp32";

  template <class Visitor>
  void visit(Visitor&& field) {
    field("epochs", epochs, "passes over the training data");
    field("batch", batch, "examples per step, all from one segment; a segment's last batch may be smaller");
    field("shuffle", shuffle, "shuffle the batches in each epoch; otherwise they follow the order of the segments");
    field("stop_above", stop_above, "a run ends after the first epoch whose mean accuracy is above this; 1: never");
    field("precision", precision,
          "fp32; tf32: fp32 with matrix products in tensor cores, on a GPU; bf16: weights and activations in bf16, updates in fp32");
  }
};

// Throws UsageError for an unknown precision.
bool uses_tf32(const QuestionTraining& training);

// Throws UsageError naming an invalid field.
void check_recall_task(const RecallTask& task);
// Generates the data of a task's segments. Throws UsageError for an invalid task.
MqarSegments make_recall_segments(const RecallTask& task);

// The data of a task on a device, shared by all runs on it.
class RecallData {
 public:
  RecallData(const MqarSegments& segments, torch::Device device);
  struct Segment {
    int64_t length = 0, examples = 0;
    int64_t labels = 0;             // labels per example
    torch::Tensor inputs, targets;  // int64 [examples, length]; -100: no label
  };
  static Segment on_device(const MqarData& data, torch::Device device);
  const std::vector<Segment>& train() const { return train_; }
  const std::vector<Segment>& test() const { return test_; }
  const std::string& hash() const { return hash_; }                             // a hash of all segments
  const std::vector<std::string>& test_hashes() const { return test_hashes_; }  // MqarData::hash() of each test segment
  torch::Device device() const { return device_; }

 private:
  torch::Device device_;
  std::vector<Segment> train_, test_;
  std::string hash_;
  std::vector<std::string> test_hashes_;
};

struct RecallRun {
  ModelConfig model;
  OptimizerOptions optimizer;  // with the run's learning rate
  QuestionTraining training;
  int64_t seed = 0;  // seed of the weights, of dropout, and of the order of the batches
};

struct RecallOutcome {
  double accuracy = 0;                        // mean over all test examples after the last epoch
  std::vector<double> segments;               // accuracy in each test segment
  std::vector<std::vector<double>> by_epoch;  // accuracy in each test segment after each epoch
  double loss = 0;                            // loss of the last step
  int64_t epochs = 0;                         // epochs done; fewer than requested if the run stopped early
  int64_t state_bytes = 0, parameters = 0;
  double seconds = 0;
  bool interrupted = false;  // if true, the other fields are not valid
};

struct RecallHooks {
  std::function<void(int64_t step, int64_t steps, double loss, double accuracy)> progress;  // called every few steps; may be null
  // Called after training with the model in evaluation mode and the outcome that train_recall is about to return; may be null.
  std::function<void(LanguageModel& model, const RecallOutcome& outcome)> trained = {};
};

// Trains on the data's device. Several runs may execute at once, each on its own thread, with the same bits as when run alone. Stops early
// at SIGINT. Throws Error if the training diverges, UsageError for an invalid model.
RecallOutcome train_recall(const RecallRun& run, const RecallData& data, const RecallHooks& hooks);

}  // namespace based
