// The kind "recall": recall against state size (figures 1 to 3 of the paper).
#include <cmath>
#include <set>

#include "based/core/text.h"
#include "based/experiments/axes.h"
#include "based/experiments/kind.h"
#include "based/experiments/recall_eval.h"
#include "based/experiments/recall_figures.h"
#include "based/experiments/versions.h"

namespace based {
namespace {

struct RecallTrainingAxes {
  RecallTraining run;
  std::vector<double> learning_rates = {1e-3};
  std::vector<int64_t> seeds = {0};

  template <class Visitor>
  void visit(Visitor&& field) {
    run.visit(field);
    field("learning_rates", learning_rates, "each point of the figure is the best of these");
    field("seeds", seeds, "of the weights and of the order of the batches; a rate's figure is the mean over them");
  }
};

struct RecallSeries {
  std::string name;
  Config model, optimizer;
  std::vector<double> learning_rates;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "of the series in the figure");
    field("model", model, "keys laid over [model]; lists other than layers are axes, and \"= d_model / 4\" ties one key to another");
    field("optimizer", optimizer, "keys laid over [optimizer]");
    field("learning_rates", learning_rates, "in place of training.learning_rates");
  }
};

struct RecallConfig {
  std::string kind = "recall", title = "Recall against the memory it takes";
  RecallTask task;
  RecallTrainingAxes training;
  OptimizerOptions optimizer;
  Config model;
  std::vector<RecallSeries> series;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("kind", kind, "of the experiment");
    field("title", title, "of the figure");
    field("task", task, "");
    field("training", training, "");
    field("optimizer", optimizer, "learning_rate comes from training.learning_rates");
    field("model", model, "keys that the series share");
    field("series", series, "one a line in the figure: name, model, optimizer, learning_rates");
  }
};

void require(bool right, const std::string& what) {
  if (!right) throw UsageError(what);
}

int64_t epoch_steps(const RecallConfig& config) {
  int64_t steps = 0;
  for (const auto& segment : config.task.train) steps += (segment.examples + config.training.run.batch - 1) / config.training.run.batch;
  return steps;
}

int64_t longest_of(const std::vector<RecallSegment>& segments) {
  int64_t longest = 0;
  for (const auto& segment : segments) longest = std::max(longest, segment.length);
  return longest;
}

void check_config(const RecallConfig& config) {
  require(!config.series.empty(), "an experiment needs at least one [[series]]");
  require(!config.task.train.empty() && !config.task.test.empty(), "task.train and task.test each need at least one segment");
  require(config.training.run.epochs >= 1 && config.training.run.batch >= 1, "training.epochs and training.batch must be at least 1");
  require(config.training.run.batch <= INT32_MAX, "training.batch must be below 2^31");
  require(!config.training.learning_rates.empty(), "training.learning_rates must not be empty");
  require(!config.training.seeds.empty(), "training.seeds must not be empty");
  uses_tf32(config.training.run);  // refuses what is neither
  require(!std::isnan(config.training.run.stop_above), "training.stop_above must be a number");
  for (const int64_t seed : config.training.seeds) require(seed >= 0, "training.seeds must not be negative");
  check_recall_task(config.task);
  for (const bool test : {false, true})
    for (const auto& segment : test ? config.task.test : config.task.train)
      require(segment.examples >= 1, std::string("every segment of task.") + (test ? "test" : "train") + " needs examples");
  require(config.training.run.epochs <= INT32_MAX / epoch_steps(config),
          "training.epochs times the batches of an epoch must be below 2^31 steps");
  std::set<std::string> names;
  for (const RecallSeries& series : config.series) {
    require(!series.name.empty(), "every [[series]] needs a name");
    require(names.insert(series.name).second, "two [[series]] have the name " + in_quotes(series.name));
    require(series.optimizer.find("learning_rate") == nullptr,
            "series " + in_quotes(series.name) + ": optimizer.learning_rate: the rates are learning_rates");
  }
}

struct RecallDeviceData : DeviceData {
  RecallDeviceData(const RecallTask& task, torch::Device device) : recall(task, device) {}
  RecallData recall;
};

class RecallExperiment : public Experiment {
 public:
  explicit RecallExperiment(const Config& table) : config_(read_config<RecallConfig>(table)) {
    const Config* optimizer = table.find("optimizer");
    require(optimizer == nullptr || optimizer->find("learning_rate") == nullptr,
            "optimizer.learning_rate: the rates are training.learning_rates");
    check_config(config_);
    for (const RecallSeries& series : config_.series) add_series(series);
  }

  const std::vector<PlannedRun>& runs() const override { return planned_; }

  std::unique_ptr<DeviceData> load(torch::Device device) const override {
    if (device.is_cpu() && uses_tf32(config_.training.run))
      throw UsageError("training.precision = \"tf32\" is a GPU's: choose fp32, or --device cuda");
    return std::make_unique<RecallDeviceData>(config_.task, device);
  }

  std::optional<Config> run(size_t index, const DeviceData& data, const RunHooks& hooks) const override {
    const RecallData& recall = dynamic_cast<const RecallDeviceData&>(data).recall;
    const RecallOutcome outcome = train_recall(runs_[index], recall, {hooks.progress, hooks.save_to});
    if (outcome.interrupted) return {};
    Config table{Config::Table{}};
    table.set("accuracy", Config(outcome.accuracy));
    table.set("segments", write_config(outcome.segments));
    table.set("by_epoch", write_config(outcome.by_epoch));
    table.set("loss", Config(outcome.loss));
    table.set("epochs", Config(outcome.epochs));
    table.set("state_bytes", Config(outcome.state_bytes));
    table.set("parameters", Config(outcome.parameters));
    table.set("data_hash", Config(recall.hash()));
    return table;
  }

  std::vector<Figure> figures(const std::vector<PointResult>& points) const override { return recall_figures(shown(), points); }
  std::string table(const std::vector<PointResult>& points) const override { return recall_table(shown(), points); }

 private:
  RecallShown shown() const {
    size_t rates = config_.training.learning_rates.size();
    for (const RecallSeries& series : config_.series) rates = std::max(rates, series.learning_rates.size());
    return {config_.title, config_.task, config_.training.run, rates, config_.training.seeds.size(), models_};
  }

  void add_series(const RecallSeries& series) {
    const std::string at = "series " + in_quotes(series.name) + ": ";
    const std::vector<double>& rates = series.learning_rates.empty() ? config_.training.learning_rates : series.learning_rates;
    Config keys = laid_over(model_table(config_.model), model_table(series.model));
    keys.set("vocab_size", Config(config_.task.vocab_size));
    for (const AxisPoint& point : expand_axes(keys)) {
      try {
        add_point(series, point, rates);
      } catch (const UsageError& error) {
        throw UsageError(at + (point.label.empty() ? "" : point.label + ": ") + error.what());
      }
    }
  }

  void add_point(const RecallSeries& series, const AxisPoint& point, const std::vector<double>& rates) {
    const ModelConfig model = read_model_config(point.model);
    check_positions(model, std::max(longest_of(config_.task.train), longest_of(config_.task.test)));
    const int64_t parameters = parameter_count(model);  // looks at the mixers' options, too
    for (const double rate : rates)
      for (const int64_t seed : config_.training.seeds) {
        RecallRun run{model, read_config<OptimizerOptions>(laid_over(write_config(config_.optimizer), series.optimizer)),
                      config_.training.run, seed};
        run.optimizer.learning_rate = rate;
        run.optimizer.min_learning_rate = std::min(run.optimizer.min_learning_rate, rate);
        check_optimizer_options(run.optimizer);
        planned_.push_back(planned(series.name, point.label, run, parameters));
        runs_.push_back(std::move(run));
      }
    models_.emplace(point_key(series.name, point.label), model);
  }

  PlannedRun planned(const std::string& series, const std::string& label, const RecallRun& run, int64_t parameters) const {
    PlannedRun planned{series, label, run.optimizer.learning_rate, run.seed, {}, {}};
    planned.config = Config(Config::Table{{"model", model_key(run.model)},
                                          {"task", without_defaults(write_config(config_.task), write_config(RecallTask{}))},
                                          {"optimizer", without_defaults(write_config(run.optimizer), write_config(OptimizerOptions{}))},
                                          {"training", without_defaults(write_config(run.training), write_config(RecallTraining{}))},
                                          {"seed", Config(run.seed)}});
    planned.versions =
        Config(Config::Table{{"data", Config(mqar_version)}, {"training", Config(recall_version)}, {"mixers", mixer_versions(run.model)}});
    planned.steps = epoch_steps(config_) * config_.training.run.epochs;
    planned.length = longest_of(config_.task.test);
    planned.parameters = parameters;
    double tokens = 0;
    for (const auto& segment : config_.task.train) tokens += static_cast<double>(segment.length * segment.examples);
    planned.cost = tokens * static_cast<double>(config_.training.run.epochs) * static_cast<double>(parameters);
    return planned;
  }

  RecallConfig config_;
  std::vector<RecallRun> runs_;
  std::vector<PlannedRun> planned_;
  std::map<std::string, ModelConfig> models_;  // by point
};

}  // namespace

extern const ExperimentKind experiment_kind_recall;
const ExperimentKind experiment_kind_recall{
    "recall", "Multi-query associative recall against bytes of state", "accuracy",
    [](const Config& config) -> std::unique_ptr<Experiment> { return std::make_unique<RecallExperiment>(config); },
    [] { return config_help<RecallConfig>(); }};

}  // namespace based
