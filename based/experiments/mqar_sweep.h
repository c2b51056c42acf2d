// Recall against state size (figures 2 and 3 of the paper): trains many small models on multi-query associative recall and records, for
// each, the bytes of the state that really runs and the recall it reached. From one TOML file; every list in a model's entry but `layers`
// is an axis of the sweep. Runs that the same code has finished are skipped, so an interrupted sweep goes on.
#pragma once
#include <string>
#include <vector>

#include "based/core/plot.h"
#include "based/data/mqar.h"
#include "based/models/config.h"
#include "based/train/loop.h"

namespace based {

struct MqarSegment {
  int64_t length = 64, pairs = 4, examples = 1000;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("length", length, "tokens an example");
    field("pairs", pairs, "key-value pairs an example");
    field("examples", examples, "examples");
  }
};

struct MqarTask {
  int64_t vocab_size = 8192;
  double power_a = 0.01;
  bool random_fillers = true;
  int64_t seed = 0;
  std::vector<MqarSegment> train, test;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("vocab_size", vocab_size, "keys are its lower half, values its upper half");
    field("power_a", power_a, "exponent of the gaps between a pair and its query");
    field("random_fillers", random_fillers, "fill the gaps with random tokens that are no key of the example; otherwise with 0");
    field("seed", seed, "of the data; training and test data never share a stream");
    field("train", train, "segments, in this order within an epoch unless run.shuffle");
    field("test", test, "segments; the recall reported is the mean over all their examples");
  }
};

struct MqarTraining {
  int64_t epochs = 1, batch = 64, seed = 0;
  bool shuffle = true;
  std::vector<double> learning_rates = {1e-3};

  template <class Visitor>
  void visit(Visitor&& field) {
    field("epochs", epochs, "passes over the training data");
    field("batch", batch, "examples a step, all of one segment");
    field("seed", seed, "of the weights and of the order of the batches");
    field("shuffle", shuffle, "draw the order of the batches anew each epoch");
    field("learning_rates", learning_rates, "each point of the figure is the best of these");
  }
};

struct MqarModelEntry {
  std::string name;
  Config model;  // laid over the sweep's [model]; lists other than `layers` are swept

  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "series in the figure");
    field("model", model, "keys laid over [model]; lists other than layers are swept");
  }
};

struct MqarSweep {
  std::string title = "Recall against state size";
  MqarTask task;
  MqarTraining run;
  OptimizerOptions optimizer;
  Config model;  // what the models share
  std::vector<MqarModelEntry> models;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("title", title, "of the figure");
    field("task", task, "");
    field("run", run, "");
    field("optimizer", optimizer, "learning_rate comes from run.learning_rates");
    field("model", model, "keys that the models share");
    field("models", models, "");
  }
};

// The data of task.train or of task.test, one a segment.
std::vector<MqarData> make_segments(const MqarTask& task, bool test);

// One training run of the sweep.
struct MqarPoint {
  std::string name;   // the series
  std::string label;  // what distinguishes it in its series: "feature_dim=8"
  ModelConfig model;
  double learning_rate = 0;
};
// In the order of the file, at least one. Throws UsageError for a wrong config.
std::vector<MqarPoint> expand_sweep(const MqarSweep& sweep);

struct MqarResult {
  std::string name, label;
  std::string key, code;  // the whole configuration, hashed, and results_version: a finished run with both is not done again
  std::string model;      // folder of the trained model, beside results.jsonl
  double learning_rate = 0;
  int64_t state_bytes = 0, parameters = 0;
  double recall = 0, loss = 0, seconds = 0;
  std::vector<double> segments;  // recall in each test segment
  std::string data_hash;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "");
    field("label", label, "");
    field("key", key, "");
    field("code", code, "");
    field("model", model, "");
    field("learning_rate", learning_rate, "");
    field("state_bytes", state_bytes, "");
    field("parameters", parameters, "");
    field("recall", recall, "");
    field("loss", loss, "");
    field("seconds", seconds, "");
    field("segments", segments, "");
    field("data_hash", data_hash, "");
  }
};

struct SweepOutcome {
  std::vector<MqarResult> results;  // in the order of the points
  int64_t points = 0, reused = 0;   // reused: results taken from results.jsonl
};

// Trains what is not yet in `out`/results.jsonl and writes figure.svg and figure.png there; `out` is locked meanwhile. Results of other
// code are named, not used, and stay in the file. `fresh`: those of the same code are taken out and made again too. Stops cleanly at
// SIGINT, keeping what is finished: then there are fewer results than points. Throws UsageError for a wrong config, Error where another run
// writes to `out`, where results.jsonl is damaged and where a run diverges; results before that are kept.
SweepOutcome run_sweep(const MqarSweep& sweep, const std::string& out, bool fresh = false);

// Share of labels that the model's most likely token hits, over all segments and in each. Throws Error where the model learns fewer
// positions than an example has tokens, and where what it says is not finite.
struct MqarRecall {
  double mean = 0;
  std::vector<double> segments;
};
MqarRecall measure_recall(LanguageModel& model, const std::vector<MqarData>& test, int64_t batch);

Plot recall_figure(const MqarSweep& sweep, const std::vector<MqarResult>& results);

}  // namespace based
