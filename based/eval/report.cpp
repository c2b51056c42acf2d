#include "based/eval/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "based/core/files.h"
#include "based/core/text.h"
#include "based/core/text_table.h"
#include "based/eval/paper_figures.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

constexpr uint64_t kMaxResultBytes = uint64_t{1} << 28;
constexpr const char* kInterrupted = "the evaluation was interrupted";
constexpr const char* kPart = "of a part of the documents";
constexpr int64_t kMaxCount = int64_t{1} << 40;  // the most documents or shots that a file may name
constexpr double kChanceErrors = 2;              // a figure within so many standard errors of chance is at chance

double number_of(const DataField& field) {
  if (!field.value().is_number()) field.refuse("a number");
  return field.value().get<double>();
}

std::map<std::string, EvalFigure> read_figures(const DataField& figures) {
  if (!figures.value().is_object()) figures.refuse("an object of metrics");
  std::map<std::string, EvalFigure> read;
  for (const auto& item : figures.value().items()) {
    const DataField figure = figures.at(item.key());
    const DataField error = figure.at("stderr");
    EvalFigure& one = read[item.key()];
    one.value = number_of(figure.at("value"));
    if (error.value().is_number())
      one.standard_error = number_of(error);
    else if (error.value() != "N/A")
      error.refuse("a number or \"N/A\"");
  }
  return read;
}

void read_headline(const DataField& task, const DataField& metrics, TaskResults& results) {
  results.headline = task.text("headline");
  if (!results.figures.metrics.contains(results.headline)) metrics.refuse("an object with the metric " + results.headline);
}

// Files of earlier versions have neither.
void read_extent(const DataField& task, TaskResults& results) {
  results.size = task.has("size") ? task.integer("size", results.documents, kMaxCount) : results.documents;
  if (task.has("cut")) results.cut = task.integer("cut", 0, results.documents);
}

TaskResults read_task(const DataField& task) {
  TaskResults results;
  results.task = task.text("task");
  results.shots = task.integer("num_fewshot", 0, kMaxCount);
  results.figures.metrics = read_figures(task.at("aggregate"));
  if (task.has("further")) results.figures.further = read_figures(task.at("further"));
  if (results.figures.metrics.empty()) task.at("aggregate").refuse("an object of at least one metric");
  for (const DataField& item : task.at("per_document").items()) {
    const int64_t document = item.integer("doc", 0, kMaxCount);
    if (!results.items.emplace(document, item.value()).second) item.at("doc").refuse("a document that occurs once");
  }
  results.documents = static_cast<int64_t>(results.items.size());
  results.tied = task.integer("tied", 0, results.documents);
  read_extent(task, results);
  read_headline(task, task.at("aggregate"), results);
  results.chance = number_of(task.at("chance"));
  results.comparable = task.at("comparable").boolean();
  return results;
}

// A task of a kept line: as read_task(), without the single documents.
TaskResults read_kept_task(const DataField& task) {
  TaskResults results;
  results.task = task.text("task");
  results.shots = task.integer("shots", 0, kMaxCount);
  results.documents = task.integer("documents", 1, kMaxCount);
  results.tied = task.integer("tied", 0, results.documents);
  read_extent(task, results);
  results.figures.metrics = read_figures(task.at("metrics"));
  read_headline(task, task.at("metrics"), results);
  const DataField chance = task.at("chance");
  if (!chance.value().is_null()) results.chance = number_of(chance);
  for (const DataField& note : task.at("notes").items()) results.comparable = results.comparable && note.value() != kNotComparable;
  return results;
}

// lm-eval's standard error, or that of the documents' values where these are numbers and the metric is their mean.
std::optional<double> error_of(const TaskResults& results, const std::string& metric) {
  const EvalFigure& figure = results.figures.metrics.at(metric);
  if (figure.standard_error) return figure.standard_error;
  const auto items = item_values(results, metric);
  if (!items || items->empty() || is_perplexity(metric)) return {};
  std::vector<double> values;
  for (const auto& [document, value] : *items) values.push_back(value);
  return mean_standard_error(values);
}

// The name under which paper_figures.h has a task.
std::string paper_task(const TaskResults& results) {
  constexpr std::string_view published = "_published";
  std::string name = results.task;
  if (name.ends_with(published)) name.resize(name.size() - published.size());
  return name;
}

std::string paper_row_name(const PaperResult& row) {
  return row.model + (row.parameters.empty() ? "" : " " + row.parameters + "/" + row.tokens);
}

std::string percent(double fraction) { return format_number(100 * fraction, 2); }

std::string figure_text(const std::string& metric, double value) {
  return is_perplexity(metric) ? format_number(value, metric == "bits_per_byte" ? 4 : 2) : percent(value);
}

std::string with_error(const std::string& metric, double value, const std::optional<double>& error) {
  return figure_text(metric, value) + (error ? " ± " + figure_text(metric, *error) : "");
}

std::string write_table(const TextTable& table, TableForm form) {
  return form == TableForm::markdown ? table.to_markdown() : table.to_latex(LatexRules::booktabs);
}

// The figures of one number of shots, for the paper's averages.
const TaskResults* find_results(const ModelResults& results, const std::string& task, int64_t shots) {
  for (const TaskResults& each : results.tasks)
    if (each.shots == shots && paper_task(each) == task) return &each;
  return nullptr;
}

struct EvalAverage {
  std::string name;
  double value = 0;
  std::optional<double> error;
  std::string note;
};

// Tasks are taken as independent; the metrics of one task as fully correlated, which bounds the error from above.
std::optional<double> average_error(const ModelResults& results, const PaperTable& table, int64_t shots) {
  std::map<std::string, double> by_task;
  for (const PaperColumn& column : table.columns) {
    if (!column.averaged) continue;
    const std::optional<double> error = error_of(*find_results(results, column.task, shots), column.metric);
    if (!error) return {};
    const std::optional<double> weight = paper_average(table, [&](const std::string& task, const std::string& metric) {
      return std::optional<double>(task == column.task && metric == column.metric ? 1.0 : 0.0);
    });
    by_task[column.task] += weight.value_or(0) * *error;
  }
  double squares = 0;
  for (const auto& [task, error] : by_task) squares += error * error;
  return std::sqrt(squares);
}

// The averages of the paper's tables for which `results` has all figures.
std::vector<EvalAverage> averages(const ModelResults& results) {
  std::set<int64_t> shots;
  for (const TaskResults& each : results.tasks) shots.insert(each.shots);
  std::vector<EvalAverage> found;
  for (const PaperTable& table : paper_tables()) {
    for (const int64_t count : shots) {
      const std::optional<double> value = paper_average(table, [&](const std::string& task, const std::string& metric) {
        const TaskResults* one = find_results(results, task, count);
        if (one == nullptr || !one->figures.metrics.contains(metric)) return std::optional<double>();
        return std::optional<double>(one->figures.metrics.at(metric).value);
      });
      if (!value) continue;
      const std::string name = "average of " + table.label + (count > 0 ? ", " + std::to_string(count) + "-shot" : "");
      const auto any_task = [&](const auto& has) {
        return std::any_of(table.columns.begin(), table.columns.end(),
                           [&](const PaperColumn& column) { return column.averaged && has(*find_results(results, column.task, count)); });
      };
      const bool other = any_task([](const TaskResults& task) { return !task.comparable; });
      const bool part = any_task([](const TaskResults& task) { return !task.whole(); });
      found.push_back({name, *value, average_error(results, table, count), other ? kNotComparable : part ? kPart : ""});
    }
  }
  return found;
}

// The paper's rows called `name`, each with its table.
std::vector<std::pair<const PaperTable*, const PaperResult*>> find_paper_rows(const std::string& name) {
  std::vector<std::pair<const PaperTable*, const PaperResult*>> found;
  std::set<std::string> known;
  for (const PaperTable& table : paper_tables()) {
    for (const PaperResult& row : table.rows) {
      if (paper_row_name(row) == name) found.emplace_back(&table, &row);
      known.insert(paper_row_name(row));
    }
  }
  if (!found.empty() || name.empty()) return found;
  std::string names;
  for (const std::string& each : known) names += (names.empty() ? "" : "; ") + each;
  throw UsageError("the paper's tables have no row " + in_quotes(name) + "; their rows: " + names);
}

std::optional<int64_t> bytes_of_state(const ModelResults& results) {
  if (!results.run.contains("model") || !results.run["model"].is_object()) return {};
  const auto bytes = results.run["model"].find("state_bytes");
  if (bytes == results.run["model"].end() || !bytes->is_number_integer()) return {};
  return bytes->get<int64_t>();
}

Json figure_json(double value, const std::optional<double>& error) {
  return {{"value", value}, {"stderr", error ? Json(*error) : Json("N/A")}};
}

bool share_a_task(const ModelResults& first, const ModelResults& second) {
  return std::any_of(first.tasks.begin(), first.tasks.end(), [&](const TaskResults& task) {
    return std::any_of(second.tasks.begin(), second.tasks.end(), [&](const TaskResults& other) { return other.name() == task.name(); });
  });
}

// "based" for "based-recall" and "based-superglue0".
std::string shared_part(const std::string& first, const std::string& second) {
  const auto end = std::mismatch(first.begin(), first.end(), second.begin(), second.end()).first;
  std::string part(first.begin(), end);
  while (!part.empty() && (part.back() == '-' || part.back() == '_' || part.back() == '.')) part.pop_back();
  return part;
}

std::string joined_notes(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += (text.empty() ? "" : "; ") + note;
  return text;
}

}  // namespace

std::string TaskResults::name() const { return task + (shots > 0 ? ", " + std::to_string(shots) + "-shot" : ""); }

const EvalFigure& TaskResults::headline_figure() const { return figures.metrics.at(headline); }

ModelResults read_eval_results(const std::string& path) {
  ModelResults results;
  results.path = path;
  results.name = std::filesystem::path(path).stem().string();
  const Json json = parse_json(read_file(path, kMaxResultBytes), path);
  const DataField file(json, path);
  const DataField run = file.at("run");
  if (!run.value().is_object()) run.refuse("an object, as `based eval --json` prints it");
  results.run = run.value();
  if (file.has("complete")) results.complete = file.at("complete").boolean();
  std::set<std::string> names;
  for (const DataField& task : file.at("tasks").items()) {
    if (task.at("per_document").items().empty()) continue;
    results.tasks.push_back(read_task(task));
    if (!names.insert(results.tasks.back().name()).second) task.at("task").refuse("a task that occurs once");
  }
  if (results.tasks.empty()) throw Error(path + ": no document of a task in 'tasks' has results");
  return results;
}

std::vector<ModelResults> read_kept_results(const std::string& path) {
  std::vector<ModelResults> models;
  read_json_lines(path, [&](const DataField& kept, int64_t) {
    ModelResults& model = models.emplace_back();
    model.path = path, model.name = kept.text("name"), model.complete = kept.at("complete").boolean();
    const DataField run = kept.at("run");
    if (!run.value().is_object()) run.refuse("an object, as `based eval table --form json` prints it");
    model.run = run.value();
    for (const DataField& task : kept.at("tasks").items()) model.tasks.push_back(read_kept_task(task));
    if (model.tasks.empty()) kept.at("tasks").refuse("a list of at least one task");
  });
  return models;
}

std::vector<ModelResults> join_results_of_models(std::vector<ModelResults> results) {
  std::vector<ModelResults> joined;
  for (ModelResults& each : results) {
    const auto model = std::find_if(joined.begin(), joined.end(), [&](const ModelResults& other) {
      return each.run.contains("model") && other.run.contains("model") && each.run["model"] == other.run["model"] &&
             !share_a_task(each, other);
    });
    if (model == joined.end()) {
      joined.push_back(std::move(each));
      continue;
    }
    if (const std::string name = shared_part(model->name, each.name); !name.empty()) model->name = name;
    model->complete = model->complete && each.complete;
    for (TaskResults& task : each.tasks) model->tasks.push_back(std::move(task));
  }
  return joined;
}

std::optional<std::map<int64_t, double>> item_values(const TaskResults& results, const std::string& metric) {
  std::map<int64_t, double> values;
  for (const auto& [document, item] : results.items) {
    const auto value = item.find(metric);
    if (value == item.end() || !value->is_number()) return {};
    values[document] = value->get<double>();
  }
  return values;
}

std::optional<double> headline_error(const TaskResults& results) { return error_of(results, results.headline); }

std::vector<std::string> result_notes(const TaskResults& results) {
  std::vector<std::string> notes;
  const std::optional<double> error = headline_error(results);
  if (results.chance > 0 && error) {
    const double above = results.headline_figure().value - results.chance;
    if (std::abs(above) <= kChanceErrors * *error)
      notes.emplace_back("at chance");
    else if (above < 0)
      notes.emplace_back("below chance");
  }
  if (results.tied > 0) notes.push_back("all choices tie in " + std::to_string(results.tied) + " of " + std::to_string(results.documents));
  if (results.cut > 0) notes.push_back("contexts cut in " + std::to_string(results.cut) + " of " + std::to_string(results.documents));
  if (!results.whole()) notes.push_back(std::to_string(results.documents) + " of " + std::to_string(results.size) + " documents");
  if (!results.comparable) notes.emplace_back(kNotComparable);
  return notes;
}

Json results_json(const ModelResults& results) {
  Json json{{"name", results.name}, {"run", results.run}, {"complete", results.complete}, {"tasks", Json::array()}};
  for (const TaskResults& each : results.tasks) {
    Json metrics = Json::object();
    for (const auto& [metric, figure] : each.figures.metrics) metrics[metric] = figure_json(figure.value, error_of(each, metric));
    Json task{{"task", each.task},           {"shots", each.shots},
              {"documents", each.documents}, {"metrics", std::move(metrics)},
              {"headline", each.headline},   {"chance", each.chance > 0 ? Json(each.chance) : Json(nullptr)},
              {"tied", each.tied},           {"notes", result_notes(each)}};
    if (!each.whole()) task["size"] = each.size;
    if (each.cut > 0) task["cut"] = each.cut;
    json["tasks"].push_back(std::move(task));
  }
  Json& list = json["averages"] = Json::object();
  for (const EvalAverage& average : averages(results)) list[average.name] = figure_json(average.value, average.error);
  return json;
}

std::string task_table(const ModelResults& results, const std::string& paper, TableForm form) {
  const auto paper_rows = find_paper_rows(paper);
  TextTable table{.head = {"task", "documents", "metric", "value", "chance", "note"}, .rows = {}};
  if (!paper.empty()) table.head.insert(table.head.end() - 1, "paper: " + paper);
  for (const TaskResults& each : results.tasks) {
    for (const auto& [metric, figure] : each.figures.metrics) {
      const bool headline = metric == each.headline;
      std::vector<std::string> cells{each.name(), std::to_string(each.documents), metric,
                                     with_error(metric, figure.value, error_of(each, metric)),
                                     headline && each.chance > 0 ? figure_text(metric, each.chance) : "-"};
      std::string published = "-";
      for (const auto& [source, row] : paper_rows) {
        const std::optional<double> value = paper_figure(*source, *row, paper_task(each), metric);
        if (value && row->shots == each.shots && each.comparable && each.whole()) published = figure_text(metric, *value);
      }
      if (!paper.empty()) cells.push_back(published);
      cells.push_back(headline ? joined_notes(result_notes(each)) : "");
      table.rows.push_back(std::move(cells));
    }
  }
  if (!results.complete) table.rows.front().back() += std::string(table.rows.front().back().empty() ? "" : "; ") + kInterrupted;
  for (const EvalAverage& average : averages(results)) {
    std::vector<std::string>& row = table.rows.emplace_back(table.head.size());
    row[0] = average.name;
    row[3] = with_error("", average.value, average.error);
    row.back() = average.note;
  }
  return write_table(table, form);
}

std::string model_table(std::span<const ModelResults> results, TableForm form) {
  TextTable table{.head = {"task"}, .rows = {}};
  std::vector<std::map<std::string, std::string>> cells(results.size());  // a map from row to text for each model
  std::vector<std::string> names;                                         // the rows
  const auto add_cell = [&](size_t model, const std::string& row, std::string cell) {
    if (std::find(names.begin(), names.end(), row) == names.end()) names.push_back(row);
    cells[model][row] = std::move(cell);
  };
  for (size_t i = 0; i < results.size(); ++i) {
    const ModelResults& one = results[i];
    table.head.push_back(one.name + (one.complete ? "" : " (interrupted)"));
    if (const std::optional<int64_t> bytes = bytes_of_state(one)) add_cell(i, "bytes of state", std::to_string(*bytes));
    for (const TaskResults& task : one.tasks)
      add_cell(i, task.name() + " (" + task.headline + ")", with_error(task.headline, task.headline_figure().value, headline_error(task)));
  }
  for (size_t i = 0; i < results.size(); ++i)
    for (const EvalAverage& average : averages(results[i])) add_cell(i, average.name, with_error("", average.value, average.error));
  for (const std::string& name : names) {
    std::vector<std::string>& row = table.rows.emplace_back(std::vector{name});
    for (const auto& model : cells) row.push_back(model.contains(name) ? model.at(name) : "-");
  }
  return write_table(table, form);
}

}  // namespace based
