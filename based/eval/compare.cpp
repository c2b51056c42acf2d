#include "based/eval/compare.h"

#include <algorithm>
#include <cmath>

#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

constexpr double kNormal95 = 1.96;
constexpr const char* kLeftPad = "left_pad";
constexpr const char* kBitsPerByte = "bits_per_byte";
// Members of ModelResults::run that change a document's figure.
constexpr std::pair<const char*, const char*> kComparedOptions[]{
    {"options", "seed"}, {"model", "max_length"}, {"model", "padded_columns"}, {"model", kLeftPad}};

std::string task_names(const ModelResults& results, const ModelResults& without) {
  std::string names;
  for (const TaskResults& task : results.tasks) {
    const bool other =
        std::none_of(without.tasks.begin(), without.tasks.end(), [&](const TaskResults& each) { return each.name() == task.name(); });
    if (other) names += (names.empty() ? "" : "; ") + task.name();
  }
  return names;
}

// The value at run.<outer>.<inner>; null if there is none.
Json run_value(const Json& run, const std::string& outer, const std::string& inner) {
  if (!run.contains(outer) || !run[outer].is_object() || !run[outer].contains(inner)) return {};
  return run[outer][inner];
}

bool same_selection(const Json& first, const Json& second) {
  return run_value(first, "options", "offset") == run_value(second, "options", "offset") &&
         run_value(first, "options", "limit") == run_value(second, "options", "limit");
}

void require_same(const ModelResults& first, const ModelResults& second, bool other_padding) {
  const std::string pair = first.path + " and " + second.path + " cannot be compared: ";
  const std::string only_first = task_names(first, second), only_second = task_names(second, first);
  if (!only_first.empty()) throw UsageError(pair + "only the first one has the tasks " + only_first);
  if (!only_second.empty()) throw UsageError(pair + "only the second one has the tasks " + only_second);
  for (const auto& [outer, inner] : kComparedOptions) {
    if (other_padding && inner == std::string_view(kLeftPad)) continue;
    const Json a = run_value(first.run, outer, inner), b = run_value(second.run, outer, inner);
    if (a != b) throw UsageError(pair + inner + " is " + dump_json(a) + " in the first one, and " + dump_json(b) + " in the second one");
  }
  if (!same_selection(first.run, second.run)) return;  // then the hashes are of different documents
  for (const TaskResults& task : first.tasks) {
    const Json a = run_value(first.run, "tasks", task.task), b = run_value(second.run, "tasks", task.task);
    if (a != b)
      throw UsageError(pair + "the requests of " + task.name() + " differ: the data is different, or the tokenizer cuts it differently");
  }
}

// A pair of values for each document that both files have.
struct PairedValues {
  std::vector<double> first, second;

  PairedResult result(const std::string& task, const std::string& metric) const {
    std::vector<double> differences;
    for (size_t i = 0; i < first.size(); ++i) differences.push_back(second[i] - first[i]);
    return {.task = task,
            .metric = metric,
            .documents = static_cast<int64_t>(first.size()),
            .first = mean(first),
            .second = mean(second),
            .difference = mean(differences),
            .standard_error = mean_standard_error(differences)};
  }
};

// A document's log-likelihood and its words or bytes.
std::optional<std::pair<double, double>> weighted_item(const Json& item, const std::string& metric) {
  const auto value = item.find(metric);
  if (value == item.end() || !value->is_array() || value->size() != 2) return {};
  if (!value->at(0).is_number() || !value->at(1).is_number()) return {};
  return std::pair(value->at(0).get<double>(), value->at(1).get<double>());
}

// Nats a word or byte: each document's nats are divided by the mean weight of the documents, so that the mean is Σ nats / Σ weights.
// `unit`: the figure of one nat.
std::optional<PairedValues> weighted_pairs(const TaskResults& first, const TaskResults& second, const std::string& metric, double unit) {
  PairedValues pairs;
  double weights = 0;
  for (const auto& [document, item] : first.items) {
    const auto other = second.items.find(document);
    if (other == second.items.end()) continue;
    const auto a = weighted_item(item, metric), b = weighted_item(other->second, metric);
    if (!a || !b || a->second != b->second) return {};
    pairs.first.push_back(-a->first);
    pairs.second.push_back(-b->first);
    weights += a->second;
  }
  if (weights <= 0) return {};
  const double scale = unit * static_cast<double>(pairs.first.size()) / weights;
  for (double& value : pairs.first) value *= scale;
  for (double& value : pairs.second) value *= scale;
  return pairs;
}

// `scale`: -1 turns log-likelihoods into nats.
std::optional<PairedValues> number_pairs(const TaskResults& first, const TaskResults& second, const std::string& metric, double scale) {
  const auto a = item_values(first, metric), b = item_values(second, metric);
  if (!a || !b) return {};
  PairedValues pairs;
  for (const auto& [document, value] : *a) {
    const auto other = b->find(document);
    if (other == b->end()) continue;
    pairs.first.push_back(scale * value);
    pairs.second.push_back(scale * other->second);
  }
  return pairs;
}

void compare_task(const TaskResults& first, const TaskResults& second, PairedResults& results) {
  for (const auto& [metric, figure] : first.figures.metrics) {
    const bool perplexity = metric.ends_with("perplexity"), bits = metric == kBitsPerByte;
    std::optional<PairedValues> pairs = bits ? std::nullopt : number_pairs(first, second, metric, perplexity ? -1 : 1);
    std::string name = metric + (perplexity ? " in nats a document" : "");
    if (!pairs && (perplexity || bits)) {
      pairs = weighted_pairs(first, second, metric, bits ? 1 / std::log(2.0) : 1);
      if (perplexity) name = metric + " in nats a " + (metric.starts_with("word") ? "word" : "byte");
    }
    if (pairs && !pairs->first.empty())
      results.differences.push_back(pairs->result(first.name(), name));
    else
      results.not_compared.push_back(first.name() + " " + metric);
  }
}

}  // namespace

double PairedResult::low() const { return difference - kNormal95 * standard_error.value_or(0); }
double PairedResult::high() const { return difference + kNormal95 * standard_error.value_or(0); }
bool PairedResult::resolved() const { return standard_error && (low() > 0 || high() < 0); }

PairedResults compare_results(const ModelResults& first, const ModelResults& second, bool other_padding) {
  require_same(first, second, other_padding);
  PairedResults results;
  for (const TaskResults& task : first.tasks) {
    const auto other =
        std::find_if(second.tasks.begin(), second.tasks.end(), [&](const TaskResults& each) { return each.name() == task.name(); });
    const bool common =
        std::any_of(task.items.begin(), task.items.end(), [&](const auto& item) { return other->items.contains(item.first); });
    if (!common)
      throw UsageError(first.path + " and " + second.path + " cannot be compared: they have no document of " + task.name() + " in common");
    compare_task(task, *other, results);
  }
  return results;
}

}  // namespace based
