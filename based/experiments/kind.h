// A kind of experiment is one file, based/experiments/<kind>.cpp, and one line in kinds.def. It says what runs a config comes to and how
// one is done; files, keys, devices, progress, status and plots are the same for all (experiment.h, sweep.h, report.h).
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/core/plot.h"
#include "based/ops/torch.h"

namespace based {

class LanguageModel;

// What the runs of one point and one learning rate have in common: all but the seed. A series' runs with the same label are one point of
// the figure: its learning rates, each with its seeds.
struct PlannedRate {
  std::string series;
  std::string label;  // what distinguishes the point in its series: "feature_dim=8"
  double learning_rate = 0;
  Config config;       // all that decides the result but seed, code and device; without keys that have their default
  Config versions;     // of the code that decides it
  int64_t steps = 0;   // of training, for the progress line
  int64_t length = 0;  // tokens at which state is counted
  double cost = 0;     // in any unit: the dearest run is begun first
  int64_t parameters = 0;
  std::string config_json, versions_json;  // of the above; add_runs sets them, so that the keys of millions of runs take no time
};

// One training run. An experiment may have millions, so a run holds its seed alone and shares the rest.
struct PlannedRun {
  std::shared_ptr<const PlannedRate> rate;
  int64_t seed = 0;
};
// Adds a run for each seed to `runs`.
void add_runs(std::vector<PlannedRun>& runs, std::shared_ptr<PlannedRate> rate, const std::vector<int64_t>& seeds);
Config config_of(const PlannedRun& run);  // the rate's, and the seed

// What was kept of a run; `outcome` is the kind's, and has its score. `failed`: why there is none.
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
    field("format", format, "of this file");
    field("key", key, "hash of kind, config, versions and the device's kind; the file's name");
    field("kind", kind, "");
    field("series", series, "when it was done; not part of the key");
    field("label", label, "likewise");
    field("learning_rate", learning_rate, "");
    field("seed", seed, "");
    field("device", device, "");
    field("seconds", seconds, "");
    field("config", config, "what decides the run, without keys that have their default");
    field("versions", versions, "");
    field("outcome", outcome, "");
    field("failed", failed, "why there is no outcome");
  }
};

// The best of a point's learning rates, of those that are finished; of its seeds the mean.
struct PointResult {
  std::string series, label;
  int64_t runs = 0, done = 0, failed = 0;
  std::vector<const StoredRun*> best;    // at the best rate, one a seed; empty: none is finished
  const PlannedRate* planned = nullptr;  // one of its rates
  double learning_rate = 0, score = 0, low = 0, high = 0;
};

// What a file says of T, all of whose fields it must have but those in `optional`. Throws Error naming the field that is missing or wrong.
template <class T>
T read_whole(const Config& config, const std::vector<std::string>& optional = {}) {
  const T value = read_stored([&] { return read_config<T>(config); });
  const Config fields = write_config(T{});
  for (const auto& [name, unused] : std::get<Config::Table>(fields.value()))
    if (config.find(name) == nullptr && std::find(optional.begin(), optional.end(), name) == optional.end())
      throw Error(config.where() + "it has no '" + name + "'");
  return value;
}
// Throws Error as "`where``name` must be from …" where a figure is not in its range, or is no number.
void require_figure(const std::string& where, const std::string& name, double value, double least, double most);

double figure_of(const StoredRun& run, const std::string& name);                // of its outcome; NaN where there is none
std::vector<double> figures_of(const StoredRun& run, const std::string& name);  // a list of it

struct Figure {
  std::string name;  // of its files
  Plot plot;
};

struct RunHooks {
  std::function<void(int64_t step, int64_t steps, double loss, double score)> progress;
  // Called on the trained model, with the outcome that run() then gives; may be null. What it throws, run() throws.
  std::function<void(const LanguageModel& model, const Config& outcome)> trained;
};

class DeviceData {  // what the runs on one device share
 public:
  virtual ~DeviceData() = default;
};

class Experiment {
 public:
  virtual ~Experiment() = default;
  virtual const std::vector<PlannedRun>& runs() const = 0;
  // Throws UsageError for what the device cannot do.
  virtual std::unique_ptr<DeviceData> load(torch::Device device) const = 0;
  // The outcome of runs()[index]; none where it was interrupted. Many may run at once. Throws Error where it fails.
  virtual std::optional<Config> run(size_t index, const DeviceData& data, const RunHooks& hooks) const = 0;
  // Throws Error naming the figure that an outcome of runs()[index] lacks, or that no run can come to.
  virtual void check(size_t index, const Config& outcome) const = 0;
  // The higher the better: what chooses a point's rate and is drawn. NaN where the run has none.
  virtual double score(const StoredRun& run) const = 0;
  virtual std::vector<Figure> figures(const std::vector<PointResult>& points) const = 0;
  // A table of the points in Markdown.
  virtual std::string table(const std::vector<PointResult>& points) const = 0;
};

struct ExperimentKind {
  const char* name;
  const char* summary;
  const char* score;                                          // what the experiment's score is called
  std::unique_ptr<Experiment> (*read)(const Config& config);  // throws UsageError naming the key
  std::vector<FieldHelp> (*help)();
};

const std::vector<const ExperimentKind*>& experiment_kinds();
const ExperimentKind& find_experiment_kind(const std::string& name);  // throws UsageError naming those there are

}  // namespace based
