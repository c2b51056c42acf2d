// The kind "language": language models trained on text, compared by perplexity on held-out text and its slices.
#include <algorithm>
#include <cmath>
#include <set>

#include "based/core/folders.h"
#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/experiments/axes.h"
#include "based/experiments/language_run.h"
#include "based/experiments/language_table.h"
#include "based/experiments/versions.h"
#include "based/models/language_model.h"
#include "based/models/vocabulary_size.h"
#include "based/train/text_run_checks.h"

namespace based {
namespace {

constexpr int64_t kCheckpointEvery = 200;  // steps

struct LanguageSeries {
  std::string name;
  Config model, optimizer, train;
  std::vector<double> learning_rates;
  std::vector<int64_t> seeds;
  PaperRow paper;
  std::string note;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "name of the series in figures and tables");
    field("model", model, "keys that override [model]; lists other than layers are axes, and \"= d_model / 4\" ties one key to another");
    field("optimizer", optimizer, "keys that override [optimizer]");
    field("train", train, "keys that override [train], for example accumulate for a model that needs more memory");
    field("learning_rates", learning_rates, "replaces the experiment's learning_rates");
    field("seeds", seeds, "replaces the experiment's seeds");
    field("paper", paper, "");
    field("note", note, "a remark below the table");
  }
};

struct LanguageConfig {
  std::string kind = "language", title = "Language models";
  TextDataConfig data;
  LanguageEvaluation evaluation;
  TextTrainConfig train;
  OptimizerOptions optimizer;
  CheckpointConfig checkpoint{kCheckpointEvery, 1, false};
  std::vector<double> learning_rates = {1e-3};
  double final_rate = 0.1;
  std::vector<int64_t> seeds = {0};
  Config model;
  std::vector<LanguageSeries> series;
  std::string base;
  bool mixed_cards = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("kind", kind, "kind of the experiment");
    field("title", title, "title of figures and tables");
    field("data", data, "as in `based train`; the tokenizer is bytes or a folder");
    field("evaluation", evaluation, "");
    field("train", train, "as in `based train`; device and seed come from --device and from seeds");
    field("optimizer", optimizer, "learning_rate comes from learning_rates, min_learning_rate from final_rate");
    field("checkpoint", checkpoint, "of unfinished runs");
    field("learning_rates", learning_rates, "learning rates to try; a point is the best of them by held-out loss");
    field("final_rate", final_rate, "learning rate at the end of the cosine, as a share of the peak");
    field("seeds", seeds, "seeds of the weights and of the order of the data; rows of a table are compared seed by seed");
    field("model", model, "keys that the series share");
    field("series", series, "one for each model: name, model, optimizer, train, learning_rates, seeds, paper, note");
    field("base", base, "name of the series whose difference from each row the table gives; empty: no differences");
    field("mixed_cards", mixed_cards, "allow a table in which the runs of one seed were trained on different card models");
  }
};

void require_usage(bool right, const std::string& what) {
  if (!right) throw UsageError(what);
}

// Keys of `based train` that another part of the experiment decides.
struct RefusedKey {
  const char *part, *key, *remedy;
};
constexpr RefusedKey kRefused[] = {
    {"train", "device", "the device is the command's --device"},
    {"train", "seed", "the seeds are the experiment's seeds"},
    {"train", "start", "an experiment trains each model from initial weights"},
    {"optimizer", "learning_rate", "the rates are learning_rates"},
    {"optimizer", "min_learning_rate", "the last rate is final_rate times the learning rate"},
};

class LanguageExperiment : public Experiment {
 public:
  explicit LanguageExperiment(const Config& table) : config_(read_config<LanguageConfig>(table)) {
    for (const char* part : {"train", "optimizer"})
      if (const Config* found = table.find(part)) check_part(part, *found);
    check_config();
    Progress planning("experiment: runs", 0, {.delay = kProgressDelay});
    for (const LanguageSeries& series : config_.series) add_series(series, planning);
    require_usage(config_.base.empty() || points_of_[config_.base] == 1,
                  "base = " + in_quotes(config_.base) + " must be the name of a series with one point");
  }

  const std::vector<PlannedRun>& runs() const override { return planned_; }

  std::unique_ptr<DeviceData> load(torch::Device device) const override {
    return std::make_unique<LanguageData>(config_.data, config_.evaluation, config_.train.length, device);
  }

  std::optional<Config> run(size_t index, const DeviceData& data, const RunHooks& hooks) const override {
    const auto& language = dynamic_cast<const LanguageData&>(data);
    const auto& rate = static_cast<const Rate&>(*planned_[index].rate);
    TextRun run = rate.run;
    run.train.device = language.device().str();
    run.train.seed = planned_[index].seed;
    const auto outcome = train_language(run, config_.evaluation, language, hooks);
    if (!outcome) return {};
    return write_config(*outcome);
  }

  void check(size_t index, const Config& outcome) const override {
    const auto& rate = static_cast<const Rate&>(*planned_[index].rate);
    check_language_outcome(outcome, std::max<size_t>(1, config_.evaluation.held_out.size()), config_.evaluation.thresholds.size(),
                           rate.steps, rate.parameters);
  }

  double score(const StoredRun& run) const override { return figure_of(run, "loss"); }
  std::unique_ptr<Tokenizer> tokenizer() const override { return make_tokenizer(config_.data.tokenizer); }
  std::vector<Figure> figures(const std::vector<PointResult>& points) const override { return language_figures(summary(), points); }
  std::string table(const std::vector<PointResult>& points) const override { return language_table(summary(), points); }
  std::string latex_table(const std::vector<PointResult>& points) const override { return language_latex_table(summary(), points); }

 private:
  struct Rate : PlannedRate {
    TextRun run;  // without seed and device
  };

  static void check_part(const std::string& part, const Config& table) {
    for (const RefusedKey& refused : kRefused) {
      const Config* found = part == refused.part ? table.find(refused.key) : nullptr;
      if (found) throw UsageError(found->where() + refused.key + ": " + refused.remedy);
    }
  }

  static void check_seeds(const std::vector<int64_t>& seeds) {
    for (const int64_t seed : seeds) require_usage(seed >= 0, "seeds must not be negative");
  }

  void check_config() const {
    require_usage(!config_.learning_rates.empty(), "learning_rates must not be empty");
    require_usage(!config_.seeds.empty(), "seeds must not be empty");
    check_seeds(config_.seeds);
    require_usage(config_.final_rate >= 0 && config_.final_rate <= 1, "final_rate must be from 0 to 1");
    require_usage(config_.data.tokenizer != "bpe",
                  "data.tokenizer must be bytes or a tokenizer's folder, so that all runs have the same vocabulary");
    require_usage(!config_.evaluation.thresholds.empty(), "evaluation.thresholds must not be empty");
    std::set<int64_t> thresholds;
    for (const int64_t threshold : config_.evaluation.thresholds)
      require_usage(threshold >= 0 && thresholds.insert(threshold).second,
                    "evaluation.thresholds must be different numbers that are not negative");
    const std::string twice = named_twice(config_.evaluation.held_out);
    require_usage(twice.empty(), "evaluation.held_out names " + twice + " twice: each set is scored once");
    require_usage(!config_.series.empty(), "an experiment needs at least one [[series]]");
    std::set<std::string> names;
    for (const LanguageSeries& series : config_.series) {
      const std::string at = "series " + in_quotes(series.name) + ": ";
      require_usage(!series.name.empty(), "every [[series]] needs a name");
      require_usage(names.insert(series.name).second, "two [[series]] have the name " + in_quotes(series.name));
      for (const double value : {series.paper.all, series.paper.ar, series.paper.other})
        require_usage(value >= 0 && std::isfinite(value), at + "paper: a perplexity must not be negative");
      try {
        check_seeds(series.seeds);
        check_part("train", series.train);
        check_part("optimizer", series.optimizer);
      } catch (const UsageError& error) {
        throw UsageError(at + error.what());
      }
    }
  }

  void add_series(const LanguageSeries& series, Progress& planning) {
    Config keys = merged(model_table(config_.model), model_table(series.model));
    if (config_.data.tokenizer == "bytes") {
      set_vocabulary_size(keys, make_tokenizer("bytes")->vocab_size(), "the tokenizer (data.tokenizer = bytes)");
    } else {
      require_usage(keys.find("vocab_size") != nullptr || keys.find("preset") != nullptr,
                    "model.vocab_size must be the size of the tokenizer's vocabulary: runs are planned without reading the tokenizer");
    }
    const std::vector<AxisPoint> points = expand_axes(keys);
    points_of_[series.name] = points.size();
    require_usage(series.paper.all == 0 || points.size() == 1,
                  "series " + in_quotes(series.name) + ": paper: the series has several points; give each its own series");
    for (const AxisPoint& point : points) {
      try {
        add_point(series, point);
        planning.update(static_cast<int64_t>(planned_.size()));
      } catch (const UsageError& error) {
        throw UsageError("series " + in_quotes(series.name) + ": " + (point.label.empty() ? "" : point.label + ": ") + error.what());
      }
    }
  }

  void add_point(const LanguageSeries& series, const AxisPoint& point) {
    const ModelConfig model = read_model_config(point.model);
    PlannedRate common;
    TextRun run;
    run.model = write_config(model);
    run.data = config_.data;
    run.train = read_config<TextTrainConfig>(merged(write_config(config_.train), series.train));
    run.checkpoint = config_.checkpoint;
    run.optimizer = read_config<OptimizerOptions>(merged(write_config(config_.optimizer), series.optimizer));
    require_usage(model.max_positions == 0 || run.train.length <= model.max_positions,
                  "train.length = " + std::to_string(run.train.length) + " is more than model.max_positions = " +
                      std::to_string(model.max_positions) + ", the positions that the model learns");
    common.series = series.name, common.label = point.label;
    common.parameters = parameter_count(model);  // looks at the mixers' options, too
    common.versions = Config(Config::Table{{"training", Config(language_version)}, {"mixers", mixer_versions(model)}});
    common.steps = run.train.steps;
    common.length = run.train.length;
    common.cost = static_cast<double>(run.train.steps) * static_cast<double>(run.train.batch * run.train.length) *
                  static_cast<double>(common.parameters);
    for (const double rate : series.learning_rates.empty() ? config_.learning_rates : series.learning_rates)
      add_runs(planned_, planned(common, run, model, rate), series.seeds.empty() ? config_.seeds : series.seeds);
  }

  std::shared_ptr<Rate> planned(const PlannedRate& common, const TextRun& run, const ModelConfig& model, double rate) const {
    auto planned = std::make_shared<Rate>(Rate{common, run});
    planned->learning_rate = planned->run.optimizer.learning_rate = rate;
    planned->run.optimizer.min_learning_rate = rate * config_.final_rate;
    check_run(planned->run, 1);
    const auto changed = []<class T>(const T& value) { return without_defaults(write_config(value), write_config(T{})); };
    planned->config = Config(Config::Table{{"model", model_key(model)},
                                           {"data", changed(run.data)},
                                           {"evaluation", changed(config_.evaluation)},
                                           {"train", changed(run.train)},
                                           {"optimizer", changed(planned->run.optimizer)}});
    return planned;
  }

  LanguageSummary summary() const {
    LanguageSummary summary;
    summary.title = config_.title;
    summary.base = config_.base;
    const int64_t step_tokens = config_.train.batch * config_.train.length;
    summary.setting = std::to_string(config_.train.steps) + " steps of " + std::to_string(config_.train.batch) + " x " +
                      std::to_string(config_.train.length) + " tokens, " +
                      format_count(static_cast<double>(config_.train.steps * step_tokens)) + " in all; " + config_.train.precision;
    summary.thresholds = config_.evaluation.thresholds;
    summary.step_tokens = step_tokens;
    summary.mixed_cards = config_.mixed_cards;
    for (const LanguageSeries& series : config_.series) {
      if (series.paper.all > 0) summary.paper[series.name] = series.paper;
      if (!series.note.empty()) summary.notes[series.name] = series.note;
    }
    return summary;
  }

  LanguageConfig config_;
  std::map<std::string, size_t> points_of_;  // number of points, by series
  std::vector<PlannedRun> planned_;
};

// Without the keys that a file must not have.
std::vector<FieldHelp> language_help() {
  std::vector<FieldHelp> keys = config_help<LanguageConfig>();
  std::erase_if(keys, [](const FieldHelp& help) {
    return std::any_of(std::begin(kRefused), std::end(kRefused),
                       [&](const RefusedKey& refused) { return help.name == std::string(refused.part) + "." + refused.key; });
  });
  return keys;
}

}  // namespace

extern const ExperimentKind experiment_kind_language;
const ExperimentKind experiment_kind_language{
    .name = "language",
    .summary = "Language models on text: perplexity and its slices",
    .score = "loss",
    .read = [](const Config& config) -> std::unique_ptr<Experiment> { return std::make_unique<LanguageExperiment>(config); },
    .help = language_help,
    .lower_is_better = true,
    .one_at_a_time = true};

}  // namespace based
