#include "based/experiments/experiment.h"

#include <cmath>
#include <map>

#include "based/core/hash.h"
#include "based/core/text.h"
#include "based/experiments/axes.h"

namespace based {

#define BASED_EXPERIMENT_KIND(name) extern const ExperimentKind experiment_kind_##name;
#include "based/experiments/kinds.def"
#undef BASED_EXPERIMENT_KIND

const std::vector<const ExperimentKind*>& experiment_kinds() {
  static const std::vector<const ExperimentKind*> kinds{
#define BASED_EXPERIMENT_KIND(name) &experiment_kind_##name,
#include "based/experiments/kinds.def"
#undef BASED_EXPERIMENT_KIND
  };
  return kinds;
}

const ExperimentKind& find_experiment_kind(const std::string& name) {
  std::vector<std::string> known;
  for (const ExperimentKind* kind : experiment_kinds()) {
    if (kind->name == name) return *kind;
    known.emplace_back(kind->name);
  }
  std::string list;
  for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
  throw UsageError("there is no kind of experiment " + in_quotes(name) + "; there are: " + list);
}

namespace {

std::string name_of(const Config& series) {
  const Config* name = series.find("name");
  const auto* text = name != nullptr ? std::get_if<std::string>(&name->value()) : nullptr;
  return text != nullptr ? *text : "";
}

// Throws UsageError where no series has the name.
size_t index_of(const Config::Array& series, const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (size_t i = 0; i < series.size(); ++i) {
    if (name_of(series[i]) == name) return i;
    known.push_back(name_of(series[i]));
  }
  const std::string near = nearest(name, known);
  throw UsageError(where + "there is no series " + in_quotes(name) + (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

Config scaled(const Config& config, const Config& scale) {
  Config top{Config::Table{}}, result = config;
  const Config *only = nullptr, *changed = nullptr;
  for (const auto& [key, value] : config_detail::table_of(scale, "scale")) {
    if (key == "only") {
      only = &value;
    } else if (key == "series") {
      changed = &value;
    } else {
      top.set(key, value);
    }
  }
  result = laid_over(result, top);
  const Config* listed = config.find("series");
  Config::Array series = listed != nullptr ? config_detail::array_of(*listed, "series") : Config::Array();
  if (changed != nullptr)
    for (const Config& each : config_detail::array_of(*changed, "series")) {
      Config& below = series[index_of(series, name_of(each), each.where())];
      below = laid_over(below, each);
    }
  if (only != nullptr) {
    Config::Array kept;
    std::vector<std::string> names;
    config_detail::read(*only, names, "only");
    for (const std::string& name : names) kept.push_back(series[index_of(series, name, only->where())]);
    series = std::move(kept);
  }
  if (listed != nullptr) result.set("series", Config(std::move(series), listed->where()));
  return result;
}

Config without(const Config& config, const std::string& key) {
  Config::Table kept;
  for (const auto& member : std::get<Config::Table>(config.value()))
    if (member.first != key) kept.push_back(member);
  return Config(std::move(kept), config.where());
}

void require_different(const ExperimentKind& kind, const std::vector<PlannedRun>& runs) {
  std::map<std::string, const PlannedRun*> seen;
  for (const PlannedRun& run : runs) {
    const auto [before, is_new] = seen.emplace(run_key(kind, run, torch::kCPU), &run);
    if (is_new) continue;
    throw UsageError("two runs are the same, " + run_name(*before->second) + " and " + run_name(run) + ": leave one of them out");
  }
}

}  // namespace

ExperimentFile read_experiment(const std::string& path, const std::string& scale, const std::vector<std::string>& set) {
  Config config = Config::parse_toml_file(path);
  const Config* scales = config.find("scale");
  if (!scale.empty()) {
    const Config* found = scales != nullptr ? scales->find(scale) : nullptr;
    if (found == nullptr) throw UsageError("--scale " + scale + ": " + path + " has no table [scale." + scale + "]");
    config = scaled(config, *found);
  } else if (scales != nullptr) {
    config_detail::table_of(*scales, "scale");
  }
  config = without(config, "scale");
  for (const std::string& assignment : set) config.override_with(assignment);
  const Config* kind = config.find("kind");
  if (kind == nullptr) throw UsageError(path + ": needs kind = \"…\", the kind of experiment: " + experiment_kinds().front()->name);
  std::string name;
  config_detail::read(*kind, name, "kind");
  ExperimentFile file{path, scale, &find_experiment_kind(name), nullptr};
  file.experiment = file.kind->read(config);
  require_different(*file.kind, file.runs());
  return file;
}

std::string run_key(const ExperimentKind& kind, const PlannedRun& run, torch::DeviceType device) {
  Config all{Config::Table{}};
  all.set("kind", Config(std::string(kind.name)));
  all.set("device", Config(std::string(device == torch::kCUDA ? "cuda" : "cpu")));
  all.set("versions", run.versions);
  all.set("config", run.config);
  const std::string text = all.to_json(-1);
  return xxh3_128(std::as_bytes(std::span(text))).hex();
}

std::string point_name(const std::string& series, const std::string& label) { return series + (label.empty() ? "" : " " + label); }

std::string run_name(const PlannedRun& run) {
  return point_name(run.series, run.label) + ", learning rate " + Config(run.learning_rate).to_json(-1) + ", seed " +
         std::to_string(run.seed);
}

double figure_of(const StoredRun& run, const std::string& name) {
  const Config* figure = run.outcome.find(name);
  if (figure == nullptr || figure->is_null()) return NAN;
  double value = 0;
  config_detail::read(*figure, value, name);
  return value;
}

std::vector<double> figures_of(const StoredRun& run, const std::string& name) {
  std::vector<double> values;
  if (const Config* figures = run.outcome.find(name)) config_detail::read(*figures, values, name);
  return values;
}

}  // namespace based
