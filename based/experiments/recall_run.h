// One training run on multi-query associative recall: a model, its data on a device, the recall after each epoch.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/data/mqar.h"
#include "based/models/language_model.h"
#include "based/train/optimizer.h"

namespace based {

// Raised where a run of the same data, model and rate comes out otherwise than before by more than rounding; kept results name it.
inline constexpr int64_t recall_version = 1;

struct RecallSegment {
  int64_t length = 64, pairs = 4, examples = 1000;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("length", length, "tokens an example");
    field("pairs", pairs, "key-value pairs an example");
    field("examples", examples, "examples");
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
    field("vocab_size", vocab_size, "keys are its lower half, values its upper half");
    field("power_a", power_a, "exponent of the gaps between a pair and its query");
    field("random_fillers", random_fillers, "fill the gaps with random tokens; otherwise with 0");
    field("compat", compat, "'zoology': the published data, bit for bit; 'none': ours, whose fillers are no key of the example");
    field("seed", seed, "of the data; training and test data never share a stream");
    field("filler_seed", filler_seed, "zoology only: seed of the fillers' own generator; -1: seed");
    field("train", train, "segments, in this order within an epoch unless training.shuffle");
    field("test", test, "segments; the accuracy reported is the mean over all their examples");
  }
};

struct RecallTraining {
  int64_t epochs = 1, batch = 256;
  bool shuffle = false;
  double stop_above = 1;
  std::string precision = "fp32";

  template <class Visitor>
  void visit(Visitor&& field) {
    field("epochs", epochs, "passes over the training data");
    field("batch", batch, "examples a step, all of one segment; a segment's last batch may be smaller");
    field("shuffle", shuffle, "draw the order of the batches anew each epoch; otherwise the order of the segments");
    field("stop_above", stop_above, "a run ends after the epoch whose mean accuracy is above this; 1: never");
    field("precision", precision,
          "fp32; tf32: products of matrices in tensor cores, on a GPU; bf16: weights and activations, updates in fp32");
  }
};

// Throws UsageError for a precision that there is not.
bool uses_tf32(const RecallTraining& training);

// Throws UsageError naming the segment's field that cannot be.
void check_recall_task(const RecallTask& task);
// The data of a task's segments. Throws UsageError for a wrong task.
MqarSegments make_recall_segments(const RecallTask& task);

// The data of a task on a device, shared by the runs there.
class RecallData {
 public:
  RecallData(const MqarSegments& segments, torch::Device device);
  struct Segment {
    int64_t length = 0, examples = 0;
    int64_t labels = 0;             // of each example
    torch::Tensor inputs, targets;  // int64 [examples, length]; -100: no label
  };
  static Segment on_device(const MqarData& data, torch::Device device);
  const std::vector<Segment>& train() const { return train_; }
  const std::vector<Segment>& test() const { return test_; }
  const std::string& hash() const { return hash_; }                             // of all segments
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
  OptimizerOptions optimizer;  // with the run's own rate
  RecallTraining training;
  int64_t seed = 0;  // of the weights, of what is dropped, and of the order of the batches
};

struct RecallOutcome {
  double accuracy = 0;                        // mean over all test examples after the last epoch
  std::vector<double> segments;               // of each test segment
  std::vector<std::vector<double>> by_epoch;  // segments after each epoch
  double loss = 0;                            // of the last step
  int64_t epochs = 0;                         // done, fewer than asked for where the run stopped early
  int64_t state_bytes = 0, parameters = 0;
  double seconds = 0;
  bool interrupted = false;  // then nothing else is to be kept
};

struct RecallHooks {
  std::function<void(int64_t step, int64_t steps, double loss, double accuracy)> progress;  // after some steps; may be null
  // When training is over, on the model in evaluation mode, with what train_recall then gives; may be null.
  std::function<void(LanguageModel& model, const RecallOutcome& outcome)> trained = {};
};

// Trains on the device that the data lie on. Many may run at once on threads of their own, each with the bits of the run alone. Ends early
// at SIGINT. Throws Error where it diverges, UsageError for a model that cannot be.
RecallOutcome train_recall(const RecallRun& run, const RecallData& data, const RecallHooks& hooks);

}  // namespace based
