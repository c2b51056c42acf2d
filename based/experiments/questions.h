// Experiments that train small models on questions with one right answer each. The kinds of such experiments differ in their task. A kind
// is a struct `Kind`:
//   using Task = …;                                          a visited struct
//   static constexpr const char *kName, *kTitle;             the kind's name, and the default title of the figure
//   static constexpr int64_t kVersion;                       version of the data
//   static constexpr bool kAgainstParameters;                whether the kind supports the key against_parameters
//   static void check(const Task&);                          throws UsageError naming an invalid key
//   static int64_t vocab_size(const Task&);
//   static std::vector<QuestionSegment> segments(const Task&, bool test);
//   static MqarSegments make(const Task&);
//   using Measured = …;                                      a visited struct: figures of the kind beside QuestionFigures; or NoFigures
//   static Measured measure(LanguageModel&, const RecallData&, const Task&);             called after training
//   static void check_measured(const Task&, const Measured&, const std::string& where);  throws Error like require_figure
//   static std::vector<Figure> figures(const QuestionsSummary<Task>&, const std::vector<PointResult>&);
//   static std::string table(const QuestionsSummary<Task>&, const std::vector<PointResult>&);
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/experiments/axes.h"
#include "based/experiments/kind.h"
#include "based/experiments/recall_eval.h"
#include "based/experiments/recall_run.h"
#include "based/experiments/versions.h"
#include "based/models/vocabulary_size.h"

namespace based {

struct QuestionSegment {
  int64_t length = 0, examples = 0;
};

// The description of an experiment that its figures and tables print.
template <class Task>
struct QuestionsSummary {
  std::string title;
  Task task;
  QuestionTraining training;
  size_t rates = 1, seeds = 1;                // rates: the largest number of learning rates of any series
  std::map<std::string, ModelConfig> models;  // by point_key
  bool last_segment = false;                  // the score is that of the last test segment
  bool against_parameters = false;
};
std::string point_key(const std::string& series, const std::string& label);

struct NoFigures {
  template <class Visitor>
  void visit(Visitor&&) {}
};

// The stored figures of a run that all kinds share.
struct QuestionFigures {
  double accuracy = 0;
  std::vector<double> segments;
  std::vector<std::vector<double>> by_epoch;
  double loss = 0;
  int64_t epochs = 0, state_bytes = 0, parameters = 0;
  std::string data_hash;
  std::vector<std::string> test_hashes;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("accuracy", accuracy, "accuracy over all test examples");
    field("segments", segments, "accuracy in each test segment");
    field("by_epoch", by_epoch, "accuracy in each test segment after each epoch");
    field("loss", loss, "loss of the last step");
    field("epochs", epochs, "epochs that were done");
    field("state_bytes", state_bytes, "bytes of state at the longest test example");
    field("parameters", parameters, "parameters of the model");
    field("data_hash", data_hash, "hash of all training and test segments");
    field(kTestHashes, test_hashes, "hash of each test segment, as `based mqar eval` prints it; older results have none");
  }
  static constexpr const char* kTestHashes = "test_hashes";
};

template <class Measured>
struct QuestionsOutcome {
  Measured measured;
  QuestionFigures figures;

  template <class Visitor>
  void visit(Visitor&& field) {
    measured.visit(field);
    figures.visit(field);
  }
};

// The accuracy over all test examples, or only in the last segment.
double score_of(const StoredRun& run, bool last_segment);

struct TrainingAxes {
  QuestionTraining run;
  std::vector<double> learning_rates = {1e-3};
  std::vector<int64_t> seeds = {0};

  template <class Visitor>
  void visit(Visitor&& field) {
    run.visit(field);
    field("learning_rates", learning_rates, "learning rates to try; a point of the figure is the best of them");
    field("seeds", seeds, "seeds of the weights and of the order of the batches; a learning rate's score is the mean over them");
  }
};

struct QuestionSeries {
  std::string name;
  Config model, optimizer;
  std::vector<double> learning_rates;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "name of the series in the figure");
    field("model", model, "keys that override [model]; lists other than layers are axes, and \"= d_model / 4\" ties one key to another");
    field("optimizer", optimizer, "keys that override [optimizer]");
    field("learning_rates", learning_rates, "replaces training.learning_rates");
  }
};

// The keys of an experiment's file.
template <class Kind>
struct QuestionsConfig {
  std::string kind = Kind::kName, title = Kind::kTitle;
  typename Kind::Task task;
  TrainingAxes training;
  OptimizerOptions optimizer;
  Config model;
  std::vector<QuestionSeries> series;
  std::string score = "all";
  bool against_parameters = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("kind", kind, "kind of the experiment");
    field("title", title, "title of the figure");
    field("task", task, "");
    field("training", training, "");
    field("optimizer", optimizer, "learning_rate comes from training.learning_rates");
    field("model", model, "keys that the series share");
    field("series", series, "one for each line in the figure: name, model, optimizer, learning_rates");
    field("score", score,
          "the plotted score, which also selects a point's learning rate: all: accuracy over all test examples; last: in the last segment");
    field("against_parameters", against_parameters, "also draw parameters.svg: the score against the model's number of parameters");
  }
};

// Both check the keys that all kinds share, and throw UsageError naming an invalid one.
void check_training(const TrainingAxes& training, const std::vector<QuestionSegment>& train, const std::vector<QuestionSegment>& test);
void check_series(const std::vector<QuestionSeries>& series);
int64_t epoch_steps(const std::vector<QuestionSegment>& train, int64_t batch);
int64_t longest_of(const std::vector<QuestionSegment>& segments);
// Throws Error if a list of figures has another length than `wanted`.
void require_count(const std::string& where, const std::string& name, size_t count, size_t wanted);
QuestionFigures figures_of(const RecallOutcome& outcome, const RecallData& data);
// Throws Error like require_figure if a run of at most `epochs` epochs cannot have these figures.
void check_figures(const QuestionFigures& figures, const std::vector<QuestionSegment>& test, int64_t epochs, int64_t parameters,
                   const std::string& where);

struct QuestionsDeviceData : DeviceData {
  QuestionsDeviceData(const MqarSegments& segments, torch::Device device) : recall(segments, device) {}
  RecallData recall;
};

template <class Kind>
class QuestionsExperiment : public Experiment {
 public:
  explicit QuestionsExperiment(const Config& table) : config_(read_config<QuestionsConfig<Kind>>(table)) {
    const Config* optimizer = table.find("optimizer");
    if (optimizer != nullptr && optimizer->find("learning_rate") != nullptr)
      throw UsageError("optimizer.learning_rate: the rates are training.learning_rates");
    check_series(config_.series);
    if (config_.score != "all" && config_.score != "last") throw UsageError("score must be all or last, got " + in_quotes(config_.score));
    if (config_.against_parameters && !Kind::kAgainstParameters)
      throw UsageError("against_parameters: the kind " + std::string(Kind::kName) + " has no such figure");
    Kind::check(config_.task);
    train_ = Kind::segments(config_.task, false);
    test_ = Kind::segments(config_.task, true);
    check_training(config_.training, train_, test_);
    task_key_ = without_defaults(write_config(config_.task), write_config(typename Kind::Task{}));
    training_key_ = without_defaults(write_config(config_.training.run), write_config(QuestionTraining{}));
    Progress planning("experiment: runs", 0, {.delay = kProgressDelay});
    for (const QuestionSeries& series : config_.series) add_series(series, planning);
  }

  const std::vector<PlannedRun>& runs() const override { return planned_; }

  std::unique_ptr<DeviceData> load(torch::Device device) const override {
    if (device.is_cpu() && uses_tf32(config_.training.run))
      throw UsageError("training.precision = \"tf32\" needs a GPU: choose fp32, or --device cuda");
    return std::make_unique<QuestionsDeviceData>(Kind::make(config_.task), device);
  }

  std::optional<Config> run(size_t index, const DeviceData& data, const RunHooks& hooks) const override {
    const RecallData& recall = dynamic_cast<const QuestionsDeviceData&>(data).recall;
    Config kept;
    const auto trained = [&](LanguageModel& model, const RecallOutcome& outcome) {
      kept = write_config(Outcome{Kind::measure(model, recall, config_.task), figures_of(outcome, recall)});
      if (hooks.trained) hooks.trained(model, kept);
    };
    if (train_recall(run_of(index), recall, {hooks.progress, trained}).interrupted) return {};
    return kept;
  }

  void check(size_t index, const Config& outcome) const override {
    const Outcome read = read_whole<Outcome>(outcome, {QuestionFigures::kTestHashes});
    if (outcome.find(QuestionFigures::kTestHashes) != nullptr)
      require_count(outcome.where(), QuestionFigures::kTestHashes, read.figures.test_hashes.size(), test_.size());
    check_figures(read.figures, test_, config_.training.run.epochs, planned_[index].rate->parameters, outcome.where());
    Kind::check_measured(config_.task, read.measured, outcome.where());
  }

  double score(const StoredRun& run) const override { return score_of(run, last_segment()); }
  std::vector<Figure> figures(const std::vector<PointResult>& points) const override { return Kind::figures(summary(), points); }
  std::string table(const std::vector<PointResult>& points) const override { return Kind::table(summary(), points); }

 private:
  using Outcome = QuestionsOutcome<typename Kind::Measured>;

  struct Rate : PlannedRate {
    const ModelConfig* model = nullptr;
    OptimizerOptions optimizer;
  };

  bool last_segment() const { return config_.score == "last"; }

  QuestionsSummary<typename Kind::Task> summary() const {
    size_t rates = config_.training.learning_rates.size();
    for (const QuestionSeries& series : config_.series) rates = std::max(rates, series.learning_rates.size());
    return {config_.title, config_.task,   config_.training.run,      rates, config_.training.seeds.size(),
            models_,       last_segment(), config_.against_parameters};
  }

  void add_series(const QuestionSeries& series, Progress& planning) {
    const std::string at = "series " + in_quotes(series.name) + ": ";
    const std::vector<double>& rates = series.learning_rates.empty() ? config_.training.learning_rates : series.learning_rates;
    Config keys = merged(model_table(config_.model), model_table(series.model));
    set_vocabulary_size(keys, Kind::vocab_size(config_.task), "the task");
    for (const AxisPoint& point : expand_axes(keys)) {
      try {
        add_point(series, point, rates, planning);
      } catch (const UsageError& error) {
        throw UsageError(at + (point.label.empty() ? "" : point.label + ": ") + error.what());
      }
    }
  }

  void add_point(const QuestionSeries& series, const AxisPoint& point, const std::vector<double>& rates, Progress& planning) {
    const ModelConfig& model = models_.emplace(point_key(series.name, point.label), read_model_config(point.model)).first->second;
    check_positions(model, std::max(longest_of(train_), longest_of(test_)));
    PlannedRate common;
    common.series = series.name, common.label = point.label;
    common.parameters = parameter_count(model);  // looks at the mixers' options, too
    common.config = Config(Config::Table{{"model", model_key(model)}, {"task", task_key_}, {"optimizer", {}}, {"training", training_key_}});
    common.versions =
        Config(Config::Table{{"data", Config(Kind::kVersion)}, {"training", Config(recall_version)}, {"mixers", mixer_versions(model)}});
    common.steps = epoch_steps(train_, config_.training.run.batch) * config_.training.run.epochs;
    common.length = longest_of(test_);
    double tokens = 0;
    for (const QuestionSegment& segment : train_) tokens += static_cast<double>(segment.length * segment.examples);
    common.cost = tokens * static_cast<double>(config_.training.run.epochs) * static_cast<double>(common.parameters);
    const auto optimizer = read_config<OptimizerOptions>(merged(write_config(config_.optimizer), series.optimizer));
    for (const double rate : rates) {
      add_runs(planned_, planned(common, model, optimizer, rate), config_.training.seeds);
      planning.update(static_cast<int64_t>(planned_.size()));
    }
  }

  static std::shared_ptr<Rate> planned(const PlannedRate& common, const ModelConfig& model, const OptimizerOptions& optimizer,
                                       double rate) {
    auto planned = std::make_shared<Rate>(Rate{common, &model, optimizer});
    planned->learning_rate = planned->optimizer.learning_rate = rate;
    planned->optimizer.min_learning_rate = std::min(optimizer.min_learning_rate, rate);
    check_optimizer_options(planned->optimizer);
    planned->config.set("optimizer", without_defaults(write_config(planned->optimizer), write_config(OptimizerOptions{})));
    return planned;
  }

  RecallRun run_of(size_t index) const {
    const auto& rate = static_cast<const Rate&>(*planned_[index].rate);
    return {*rate.model, rate.optimizer, config_.training.run, planned_[index].seed};
  }

  QuestionsConfig<Kind> config_;
  std::vector<QuestionSegment> train_, test_;
  Config task_key_, training_key_;             // parts of every run's config
  std::map<std::string, ModelConfig> models_;  // by point_key; the rates point into it
  std::vector<PlannedRun> planned_;
};

// Defines a kind, at the end of its file: BASED_QUESTIONS_KIND(recall, RecallKind, "one line of help")
#define BASED_QUESTIONS_KIND(name, Kind, summary)                                                                              \
  extern const ExperimentKind experiment_kind_##name;                                                                          \
  const ExperimentKind experiment_kind_##name{                                                                                 \
      #name, summary, "accuracy",                                                                                              \
      [](const Config& config) -> std::unique_ptr<Experiment> { return std::make_unique<QuestionsExperiment<Kind>>(config); }, \
      [] { return config_help<QuestionsConfig<Kind>>(); }};

}  // namespace based
