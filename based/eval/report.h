// Reads the results of evaluations (`based eval --json`) and prints them as tables.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/eval/task.h"

namespace based {

struct TaskResults {
  std::string task;
  int64_t shots = 0;
  std::string headline;  // as in EvalTaskKind, like the next two
  double chance = 0;
  bool comparable = true;
  int64_t documents = 0;
  int64_t size = 0;  // documents of the whole task; `documents` where the file does not say it
  int64_t tied = 0;  // documents whose choices all have the same log-likelihood
  int64_t cut = 0;   // documents whose contexts were cut to the model's length
  EvalFigures figures;
  std::map<int64_t, Json> items;  // by the document's index: {"doc", "acc", …, "further"}; of kept results empty

  bool whole() const { return documents == size; }
  std::string name() const;  // "boolq", or with examples "boolq, 5-shot"
  const EvalFigure& headline_figure() const;
};

struct ModelResults {
  std::string path;                // the file's path
  std::string name;                // the file's name without its extension; of joined files the part that their names share
  Json run;                        // {"model": {…}, "options": {…}, "tasks": {…}}
  bool complete = true;            // false: the evaluation was interrupted
  std::vector<TaskResults> tasks;  // in the order of the file, without those that have no documents yet
};

// Reads the output of `based eval --json`, eval_report_json(). Throws Error naming file and field.
ModelResults read_eval_results(const std::string& path);

// Reads a file of lines of results_json(), one for each model. Throws Error naming file, line and field.
std::vector<ModelResults> read_kept_results(const std::string& path);

// Joins the results of the same model in the same form ("model" of their runs) on different tasks, so that "based-recall" and
// "based-superglue" make one row "based". Results with a task in common stay separate.
std::vector<ModelResults> join_results_of_models(std::vector<ModelResults> results);

// The values of a metric of single documents, by index; none if they are lists.
std::optional<std::map<int64_t, double>> item_values(const TaskResults& results, const std::string& metric);

// The headline's standard error: lm-eval's. Where it has none, as for `contains`, that of the mean of the documents' values.
std::optional<double> headline_error(const TaskResults& results);

// Notes on the headline: it is at chance (within two standard errors) or below, choices tie, or the documents are not the published ones.
std::vector<std::string> result_notes(const TaskResults& results);

// Everything but the single documents, for keeping: {"name", "run", "complete", "tasks": [{"task", "shots", "documents", "metrics",
// "headline", "chance", "tied", "notes"}], "averages": {…}}. A metric is {"value", "stderr"}, with the standard errors of headline_error().
Json results_json(const ModelResults& results);

enum class TableForm { markdown, latex };

// One row for each task: documents, headline with its standard error, chance, and notes. `paper` names a row of the paper's tables ("Based
// 363m/10b"), whose figures are printed beside those of the same task and shots; "": none. The paper's averages follow, over the tasks that
// they have in the paper. Throws UsageError listing the paper's rows for an unknown one.
std::string task_table(const ModelResults& results, const std::string& paper, TableForm form);

// One column for each of several results: the bytes of its state after max_length tokens where a file has them, each task's headline, and
// the paper's averages. A figure that a file lacks is a dash.
std::string model_table(std::span<const ModelResults> results, TableForm form);

}  // namespace based
