// The interface of a kind of experiment. A kind is one file, based/experiments/<kind>.cpp, and one line in kinds.def. It derives the runs
// from a config and executes one run. Files, keys, devices, progress, status and plots are shared by all kinds (experiment.h, sweep.h,
// report.h).
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/core/plot.h"
#include "based/data/tokenizer.h"
#include "based/runtime/torch.h"

namespace based {

class LanguageModel;

// The common part of the runs that differ only in their seed. The runs of a series with the same label make one point of the figure; it has
// several learning rates, each with several seeds.
struct PlannedRate {
  std::string series;
  std::string label;  // distinguishes the points of a series: "feature_dim=8"
  double learning_rate = 0;
  Config config;       // everything that determines the result except seed, code and device; without keys that have their default
  Config versions;     // versions of the code that determines the result
  int64_t steps = 0;   // training steps, for the progress line
  int64_t length = 0;  // number of tokens for which the size of the state is reported
  double cost = 0;     // in any unit; the most expensive run starts first
  int64_t parameters = 0;
  std::string config_json, versions_json;  // JSON of the two above, cached by add_runs so that millions of keys are computed quickly
};

// One training run. An experiment may have millions of runs, so a run holds only its seed and shares the rest.
struct PlannedRun {
  std::shared_ptr<const PlannedRate> rate;
  int64_t seed = 0;
};
// Adds a run for each seed to `runs`.
void add_runs(std::vector<PlannedRun>& runs, std::shared_ptr<PlannedRate> rate, const std::vector<int64_t>& seeds);
Config config_of(const PlannedRun& run);  // the config of its rate, with the seed

// The stored result of a run. The kind of experiment defines the keys of `outcome`, which include its score. `failed`: the reason, if the
// run failed and has no outcome.
struct StoredRun {
  int64_t format = 1;
  std::string key, kind, series, label;
  double learning_rate = 0;
  int64_t seed = 0;
  std::string device;
  double seconds = 0;
  Config config, versions, outcome;
  std::string failed;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("format", format, "version of the file format");
    field("key", key, "hash of kind, config, versions and the type of device; the file's name");
    field("kind", kind, "");
    field("series", series, "name of the series when the run was done; not part of the key");
    field("label", label, "label of the point when the run was done; not part of the key");
    field("learning_rate", learning_rate, "");
    field("seed", seed, "");
    field("device", device, "");
    field("seconds", seconds, "");
    field("config", config, "everything that determines the result, without keys that have their default");
    field("versions", versions, "");
    field("outcome", outcome, "");
    field("failed", failed, "why there is no outcome");
  }
};

// The result of a point: the best of its finished learning rates, scored by the mean over its seeds.
struct PointResult {
  std::string series, label;
  int64_t runs = 0, done = 0, failed = 0;
  std::vector<const StoredRun*> best;    // the runs at the best rate, one per seed; empty if no run is finished
  const PlannedRate* planned = nullptr;  // one of its rates
  double learning_rate = 0, score = 0, low = 0, high = 0;
};

// Reads a T that must have all fields except those in `optional`. Throws Error naming the field that is missing or wrong.
template <class T>
T read_whole(const Config& config, const std::vector<std::string>& optional = {}) {
  const T value = read_stored([&] { return read_config<T>(config); });
  const Config fields = write_config(T{});
  for (const auto& [name, unused] : std::get<Config::Table>(fields.value()))
    if (config.find(name) == nullptr && std::find(optional.begin(), optional.end(), name) == optional.end())
      throw Error(config.where() + "it has no '" + name + "'");
  return value;
}
// Throws Error "`where``name` is …, which is not from … to …" if a figure is NaN or out of range.
void require_figure(const std::string& where, const std::string& name, double value, double least, double most);

double figure_of(const StoredRun& run, const std::string& name);                // a number of its outcome; NaN if it has none
std::vector<double> figures_of(const StoredRun& run, const std::string& name);  // a list of numbers of its outcome

struct Figure {
  std::string name;  // file name without the ending
  Plot plot;
};

struct RunHooks {
  std::function<void(int64_t step, int64_t steps, double loss, double score)> progress;
  // Called with the trained model and the outcome that run() is about to return; may be null. Its exceptions leave run().
  std::function<void(const LanguageModel& model, const Config& outcome)> trained;
  // Folder for the state of this run, from which an interrupted or killed run continues. The sweep removes it when the result is stored.
  std::string folder = {};
  std::string commit = {};  // the program's commit, to record in the outcome; empty: unknown
};

// A run that could not start or continue because of its files or the machine, not because of its config. The sweep stores no result for it
// and ends.
class CannotRun : public Error {
 public:
  using Error::Error;
};

class DeviceData {  // data that the runs on one device share
 public:
  virtual ~DeviceData() = default;
};

class Experiment {
 public:
  virtual ~Experiment() = default;
  virtual const std::vector<PlannedRun>& runs() const = 0;
  // Throws UsageError if the device does not support the experiment's options.
  virtual std::unique_ptr<DeviceData> load(torch::Device device) const = 0;
  // Executes runs()[index] and returns its outcome; nullopt if it was interrupted. Thread-safe. Throws Error if the run fails.
  virtual std::optional<Config> run(size_t index, const DeviceData& data, const RunHooks& hooks) const = 0;
  // Throws Error naming a figure that an outcome of runs()[index] lacks or that is out of range.
  virtual void check(size_t index, const Config& outcome) const = 0;
  // The score selects a point's learning rate and is plotted; ExperimentKind says which scores are better. NaN if the run has none.
  virtual double score(const StoredRun& run) const = 0;
  virtual std::vector<Figure> figures(const std::vector<PointResult>& points) const = 0;
  // The tokenizer of the text that all runs train on, to be saved with their models; null for data that is not text.
  virtual std::unique_ptr<Tokenizer> tokenizer() const { return nullptr; }
  // A Markdown table of the points.
  virtual std::string table(const std::vector<PointResult>& points) const = 0;
  // The same table for a LaTeX document; empty if the kind has none.
  virtual std::string latex_table(const std::vector<PointResult>&) const { return {}; }
};

struct ExperimentKind {
  const char* name;
  const char* summary;
  const char* score;                                          // name of the score, for example "accuracy"
  std::unique_ptr<Experiment> (*read)(const Config& config);  // throws UsageError naming the key
  std::vector<FieldHelp> (*help)();
  bool lower_is_better = false;  // the lower of two scores is the better one
  bool one_at_a_time = false;    // a process executes one run at a time; several GPUs take one process each

  bool is_better(double one, double other) const { return lower_is_better ? one < other : one > other; }
};

const std::vector<const ExperimentKind*>& experiment_kinds();
const ExperimentKind& find_experiment_kind(const std::string& name);  // throws UsageError listing the known kinds

}  // namespace based
