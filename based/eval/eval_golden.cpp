#include "based/eval/eval_golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/text.h"
#include "based/eval/eval_golden_compare.h"
#include "based/eval/request_dump.h"
#include "based/eval/request_stub.h"
#include "based/eval/stored_models_golden.h"
#include "based/eval/task.h"

namespace based {
namespace {

constexpr double kEvalTolerance = 1e-12;
constexpr int64_t kGoldenMaxLength = 2048;
constexpr const char* kRequestsFile = "requests.jsonl";
constexpr const char* kCasesFile = "cases.json";

// The folder of requests that `path` names, itself or by its requests.jsonl; empty if it is neither.
std::string requests_folder(const std::string& path) {
  std::filesystem::path folder(path);
  if (folder.filename() == kRequestsFile || !folder.has_filename()) folder = folder.parent_path();
  std::error_code none;
  return std::filesystem::exists(folder / kRequestsFile, none) ? folder.string() : "";
}

// The file of functions that `path` names, itself or by its folder.
std::string cases_file(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_directory(path, none) ? path_in(path, kCasesFile) : path;
}

// The task and the options of a folder's requests, from its name and its metrics.
struct GoldenTask {
  std::string name;
  int64_t shots = 0, max_length = kGoldenMaxLength;
};

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

GoldenTask golden_task(const std::string& folder, const Json& metrics) {
  GoldenTask task;
  task.name = std::filesystem::path(folder).filename().string();
  const size_t last = task.name.rfind('_');
  if (last != std::string::npos) {
    std::string end = task.name.substr(last + 1);
    const bool shots = end.ends_with("shot");
    if (shots) end.resize(end.size() - 4);
    if (is_number(end)) {
      (shots ? task.shots : task.max_length) = std::stoll(end);
      task.name.resize(last);
    }
  }
  if (!metrics.is_null()) {
    task.shots = metrics.value("num_fewshot", task.shots);
    task.max_length = metrics.value("max_length", task.max_length);
  }
  const auto& kinds = eval_task_kinds();
  const bool known = std::any_of(kinds.begin(), kinds.end(), [&](const EvalTaskKind& kind) { return kind.name == task.name; });
  if (!known && !metrics.is_null()) task.name = metrics.value("task", task.name);
  return task;
}

std::unique_ptr<Tokenizer> golden_tokenizer(const std::string& path, const EvalGoldenOptions& options) {
  if (options.data.empty())
    throw UsageError(path + ": the requests are made of data sets; name the folder of the unpacked sets with --data");
  return make_tokenizer(options.tokenizer.empty() ? path_in(options.data, "gpt2-bpe") : options.tokenizer);
}

std::vector<Json> read_request_lines(const std::string& path) {
  const std::string text = read_regular_file(path);
  std::vector<Json> lines;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string place = path + ":" + std::to_string(lines.size() + 1);
    lines.push_back(parse_json(std::string_view(text).substr(begin, end - begin), place));
    if (!lines.back().is_object()) throw Error(place + ": must be an object");
  }
  if (lines.empty()) throw Error(path + ": has no requests");
  return lines;
}

Json figures_of(const std::map<std::string, EvalFigure>& figures) {
  Json json = Json::object();
  for (const auto& [name, figure] : figures)
    json[name] = {{"value", figure.value}, {"stderr", figure.standard_error ? Json(*figure.standard_error) : Json("N/A")}};
  return json;
}

// A task's metrics, or the output of `based eval --json` for one task.
Json read_metrics(const std::string& path) {
  Json metrics = parse_json(read_regular_file(path), path);
  if (!metrics.contains("tasks")) return metrics;
  const Json& tasks = metrics.at("tasks");
  if (!tasks.is_array() || tasks.size() != 1) throw Error(path + ": 'tasks' must be a list of one task, whose requests are beside it");
  return tasks.at(0);
}

class TaskComparison {
 public:
  TaskComparison(const std::string& folder, const EvalGoldenOptions& options)
      : requests_path_(path_in(folder, kRequestsFile)), metrics_path_(path_in(folder, "metrics.json")) {
    if (path_exists(metrics_path_)) metrics_ = read_metrics(metrics_path_);
    golden_ = golden_task(folder, metrics_);
    const EvalTaskKind kind = find_eval_task(golden_.name);
    version_ = kind.version;
    std::unique_ptr<Tokenizer> tokenizer = golden_tokenizer(folder, options);
    task_ = kind.make({.data = options.data, .shots = golden_.shots, .tokenizer = tokenizer.get(), .statements = requests_path_});
    model_ = std::make_unique<StubModel>(std::move(tokenizer), golden_.max_length);
  }

  EvalComparison run() {
    const std::vector<Json> lines = read_request_lines(requests_path_);
    read_documents(lines);
    for (size_t i = 0; i < lines.size(); ++i) {
      comparison_.same_request(document_requests(model_->tokenizer(), documents_[i], golden_.max_length), lines[i],
                               requests_path_ + ":" + std::to_string(i + 1));
    }
    if (!metrics_.is_null()) compare_metrics();
    return comparison_;
  }

 private:
  // The documents of the lines, read together, because few-shot draws begin at the first document.
  void read_documents(const std::vector<Json>& lines) {
    std::vector<int64_t> indices;
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string place = requests_path_ + ":" + std::to_string(i + 1);
      if (!lines[i].contains("doc") || !lines[i].at("doc").is_number_integer()) throw Error(place + ": needs 'doc', an index");
      indices.push_back(lines[i].at("doc").get<int64_t>());
      if (indices.back() < 0 || indices.back() >= task_->size())
        throw Error(place + ": 'doc' is " + std::to_string(indices.back()) + ", and the data has " + std::to_string(task_->size()) +
                    " documents");
    }
    const auto [first, last] = std::minmax_element(indices.begin(), indices.end());
    std::vector<EvalDocument> all = task_->documents(*first, *last - *first + 1);
    for (const int64_t index : indices) documents_.push_back(all[static_cast<size_t>(index - *first)]);
  }

  void compare_metrics() {
    const std::vector<std::vector<EvalAnswer>> answers = model_->answer(documents_, {});
    std::vector<Json> measured;
    Json items = Json::array();
    for (size_t i = 0; i < documents_.size(); ++i) {
      measured.push_back(task_->measure(documents_[i], answers[i]));
      Json item{{"doc", documents_[i].index}};
      item.update(measured.back());
      items.push_back(std::move(item));
    }
    const EvalFigures figures = task_->aggregate(documents_, measured);
    compare_description(figures);
    if (metrics_.contains("per_document")) comparison_.same(items, metrics_.at("per_document"), metrics_path_ + ": per_document");
    comparison_.same(figures_of(figures.metrics), metrics_.value("aggregate", Json::object()), metrics_path_ + ": aggregate");
    comparison_.same(figures_of(figures.further), metrics_.value("further", Json::object()), metrics_path_ + ": further");
  }

  void compare_description(const EvalFigures& figures) {
    const auto [first, last] = std::minmax_element(documents_.begin(), documents_.end(),
                                                   [](const EvalDocument& a, const EvalDocument& b) { return a.index < b.index; });
    Json higher = Json::object();
    for (const auto& [name, figure] : figures.metrics) higher[name] = !is_perplexity(name);
    const std::pair<const char*, Json> values[] = {
        {"task_version", version_}, {"documents", {first->index, last->index + 1}}, {"higher_is_better", std::move(higher)}};
    for (const auto& [key, value] : values)
      if (metrics_.contains(key)) comparison_.same(value, metrics_.at(key), metrics_path_ + ": " + key);
  }

  std::string requests_path_, metrics_path_, version_;
  Json metrics_;
  GoldenTask golden_;
  std::unique_ptr<EvalTask> task_;
  std::unique_ptr<StubModel> model_;
  std::vector<EvalDocument> documents_;
  EvalComparison comparison_;
};

// Requests to stored models have log-likelihoods of these instead of the stub's. Skipped if the models are not there.
GoldenResult check_requests_to_models(const std::string& path, const std::string& folder, const std::vector<Json>& lines,
                                      const EvalGoldenOptions& options) {
  const std::string models = stored_model_folder(folder, lines.front());
  GoldenResult result;
  if (is_folder(models)) {
    result = check_stored_models(folder, lines, *golden_tokenizer(folder, options));
  } else {
    result.skipped = "its models are not there: " + models;
  }
  result.file = path;
  result.mixer = "evaluation";
  return result;
}

Json read_cases(const std::string& path) {
  try {
    return parse_json(read_regular_file(path), path);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

bool is_eval_golden(const std::string& path) {
  if (!requests_folder(path).empty()) return true;
  const std::string file = cases_file(path);
  if (!file.ends_with(".json")) return false;
  const Json cases = read_cases(file);
  return cases.is_object() &&
         std::any_of(cases.items().begin(), cases.items().end(), [](const auto& member) { return is_eval_case(member.key()); });
}

GoldenResult check_eval_golden(const std::string& path, const EvalGoldenOptions& options) {
  GoldenResult result;
  result.file = path;
  result.mixer = "evaluation";
  result.tolerance = kEvalTolerance;
  const std::string folder = requests_folder(path);
  EvalComparison comparison;
  try {
    if (folder.empty()) {
      const std::string file = cases_file(path);
      compare_eval_cases(parse_json(read_regular_file(file), file), *golden_tokenizer(file, options), file, comparison);
    } else if (const std::vector<Json> lines = read_request_lines(path_in(folder, kRequestsFile)); lines.front().contains("model")) {
      return check_requests_to_models(path, folder, lines, options);
    } else {
      comparison = TaskComparison(folder, options).run();
    }
  } catch (const Json::exception& error) {
    throw Error(path + ": has another form than expected: " + error.what());
  }
  result.output_error = comparison.error();
  result.worst = comparison.worst();
  result.pass = comparison.error() <= kEvalTolerance;
  return result;
}

// --- comparison

void EvalComparison::same(const Json& actual, const Json& expected, const std::string& where) { compare(actual, expected, where, false); }

void EvalComparison::same_request(const Json& actual, const Json& expected, const std::string& where) {
  compare(actual, expected, where, true);
}

void EvalComparison::fail(const std::string& what) {
  if (std::isinf(error_)) return;
  error_ = std::numeric_limits<double>::infinity();
  worst_ = what;
}

void EvalComparison::number(double actual, double expected, const std::string& where) {
  if (actual == expected) return;
  const double error = std::abs(actual - expected) / std::max(std::abs(expected), std::numeric_limits<double>::min());
  if (std::isnan(error)) return fail(where);
  if (error <= error_) return;
  error_ = error;
  worst_ = where;
}

void EvalComparison::compare(const Json& actual, const Json& expected, const std::string& where, bool may_lack_texts) {
  if (actual == expected) return;
  const auto differs = [&] {
    fail(where + " is " + shortened_lines(dump_json(actual), 200) + ", expected " + shortened_lines(dump_json(expected), 200));
  };
  if (actual.is_number() && expected.is_number()) return number(actual.get<double>(), expected.get<double>(), where);
  if (actual.is_array() && expected.is_array() && actual.size() == expected.size()) {
    for (size_t i = 0; i < actual.size(); ++i) compare(actual[i], expected[i], where + "[" + std::to_string(i) + "]", may_lack_texts);
    return;
  }
  if (!actual.is_object() || !expected.is_object()) return differs();
  for (const auto& [key, value] : expected.items()) {
    if (!actual.contains(key)) return fail(where + ": '" + key + "' is missing");
    compare(actual.at(key), value, where + "." + key, may_lack_texts);
  }
  for (const auto& [key, unused] : actual.items()) {
    const bool text = key == "text" || key == "ids" || key == "target";
    if (!expected.contains(key) && !(may_lack_texts && text)) fail(where + ": '" + key + "' is not expected");
  }
}

}  // namespace based
