#include "based/experiments/experiment.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <tuple>

#include "based/core/hash.h"
#include "based/core/progress.h"
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

constexpr size_t kKeysPerUpdate = 4096;  // runs

std::string name_of(const Config& series) {
  const Config* name = series.find("name");
  const auto* text = name != nullptr ? std::get_if<std::string>(&name->value()) : nullptr;
  return text != nullptr ? *text : "";
}

// Throws UsageError if no series has the name.
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
  result = merged(result, top);
  const Config* listed = config.find("series");
  Config::Array series = listed != nullptr ? config_detail::array_of(*listed, "series") : Config::Array();
  if (changed != nullptr)
    for (const Config& each : config_detail::array_of(*changed, "series")) {
      Config& below = series[index_of(series, name_of(each), each.where())];
      below = merged(below, each);
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

Hash128 key_hash(const ExperimentKind& kind, const PlannedRun& run, torch::DeviceType device) {
  const PlannedRate& rate = *run.rate;
  BASED_ASSERT(rate.config_json.ends_with('}') && rate.config_json.size() > 2);
  thread_local std::string text;
  text = "{\"kind\":\"";
  text.append(kind.name).append("\",\"device\":\"").append(device_name(device)).append("\",\"versions\":").append(rate.versions_json);
  text.append(",\"config\":").append(rate.config_json, 0, rate.config_json.size() - 1);
  text.append(",\"seed\":").append(std::to_string(run.seed)).append("}}");
  return xxh3_128(std::as_bytes(std::span(text)));
}

// Throws UsageError if two runs have the same key. Sorts the keys instead of using a map, because there may be millions of runs.
void require_different(const ExperimentKind& kind, const std::vector<PlannedRun>& runs) {
  std::vector<std::tuple<uint64_t, uint64_t, size_t>> keys;
  keys.reserve(runs.size());
  Progress progress("experiment: keys", static_cast<int64_t>(runs.size()), {.delay = kProgressDelay});
  for (size_t i = 0; i < runs.size(); ++i) {
    const Hash128 key = key_hash(kind, runs[i], torch::kCPU);
    keys.emplace_back(key.high, key.low, i);
    if ((i + 1) % kKeysPerUpdate == 0 || i + 1 == runs.size()) progress.update(static_cast<int64_t>(i + 1));
  }
  std::sort(keys.begin(), keys.end());
  std::optional<std::pair<size_t, size_t>> same;  // the first duplicate in the file's order, after the run that it repeats
  for (size_t i = 1; i < keys.size(); ++i) {
    const auto& [high, low, run] = keys[i - 1];
    const auto& [next_high, next_low, next] = keys[i];
    if (high == next_high && low == next_low && (!same || next < same->second)) same = {run, next};
  }
  if (same)
    throw UsageError("two runs are the same, " + run_name(runs[same->first]) + " and " + run_name(runs[same->second]) +
                     ": leave one of them out");
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

std::string device_name(torch::DeviceType device) { return device == torch::kCUDA ? "cuda" : "cpu"; }

std::string run_key(const ExperimentKind& kind, const PlannedRun& run, torch::DeviceType device) {
  return key_hash(kind, run, device).hex();
}

void add_runs(std::vector<PlannedRun>& runs, std::shared_ptr<PlannedRate> rate, const std::vector<int64_t>& seeds) {
  rate->config_json = rate->config.to_json(-1);
  rate->versions_json = rate->versions.to_json(-1);
  const std::shared_ptr<const PlannedRate> shared = std::move(rate);
  for (const int64_t seed : seeds) runs.push_back({shared, seed});
}

Config config_of(const PlannedRun& run) {
  Config config = run.rate->config;
  config.set("seed", Config(run.seed));
  return config;
}

std::string point_name(const std::string& series, const std::string& label) { return series + (label.empty() ? "" : " " + label); }

std::string run_name(const PlannedRun& run) {
  return point_name(run.rate->series, run.rate->label) + ", learning rate " + Config(run.rate->learning_rate).to_json(-1) + ", seed " +
         std::to_string(run.seed);
}

void require_figure(const std::string& where, const std::string& name, double value, double least, double most) {
  if (value >= least && value <= most) return;  // the comparisons are false for NaN
  const auto text = [](double number) { return std::isfinite(number) ? Config(number).to_json(-1) : std::to_string(number); };
  throw Error(where + name + " is " + text(value) + ", which is not from " + text(least) + " to " + text(most));
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
