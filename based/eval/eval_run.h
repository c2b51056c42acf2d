// Runs evaluation tasks on a model: documents are made into requests, a scorer answers these, and the tasks measure the answers.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/eval/task.h"

namespace based {

// The model of a run.
class EvalModel {
 public:
  virtual ~EvalModel() = default;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual int64_t max_length() const = 0;  // the most tokens that a request may read
  // The answers to all requests of each document, in the order of the documents. `progress` receives the number of tokens of the requests
  // that have been answered in this call; if it returns false, nothing is returned. Throws Error naming a document's place.
  using Progress = std::function<bool(int64_t tokens)>;
  virtual std::vector<std::vector<EvalAnswer>> answer(std::span<const EvalDocument> documents, const Progress& progress) = 0;
  virtual Json description() const = 0;  // all that determines the answers: "model", "max_length", …
  // The size of the blocks in which documents are answered. A killed run loses at most one block; a small block does not fill a device.
  virtual uint64_t block_bytes() const = 0;
};

struct EvalOptions {
  std::vector<std::string> tasks;
  std::string data;             // folder of the unpacked data sets
  std::string statements = {};  // as in EvalTaskOptions
  int64_t shots = 0;            // examples in each context; above 0 only for tasks that take them
  int64_t seed = 1234;          // seeds the few-shot draws
  int64_t offset = 0;           // documents before the first evaluated one
  int64_t limit = 0;            // documents of each task; 0: all
  std::string out;              // results by item, JSON lines; empty: none
};

// A task with its documents, and the results of those that have been answered.
struct EvalTaskRun {
  EvalTaskKind kind;
  int64_t shots = 0;
  std::unique_ptr<EvalTask> task;
  std::vector<EvalDocument> documents;
  std::vector<std::vector<EvalAnswer>> answers;  // one list for each finished document, in order
  std::vector<Json> measured;                    // EvalTask::measure of the finished documents

  bool finished() const { return measured.size() == documents.size(); }
  EvalFigures figures() const;  // the aggregate over the finished documents; there must be one
  // Documents with several scored choices, whose log-likelihoods are all equal.
  int64_t tied() const;
  int64_t cut() const;  // documents whose contexts were cut on the left to the model's length
  // Whether the headline is within two standard errors of the level of chance; false where either is unknown.
  bool at_chance(const EvalFigures& figures) const;
};

struct EvalReport {
  Json run;  // eval_run_json
  std::vector<EvalTaskRun> tasks;
  int64_t max_length = 0;
  bool interrupted = false;
};

// Reads the tasks' data. Throws UsageError for unknown tasks and options that a task does not have, and Error for wrong data.
std::vector<EvalTaskRun> prepare_eval(const EvalOptions& options, const Tokenizer& tokenizer);

// The JSON that identifies a run: the model's description, the options that determine the results, and a hash of each task's requests.
Json eval_run_json(const EvalModel& model, const EvalOptions& options, const std::vector<EvalTaskRun>& tasks);

// Answers all documents of the tasks that have no results in `options.out` yet. The limits of the blocks depend on the documents alone.
// Therefore a run that was killed and continued writes the same file as an uninterrupted one. `options.out` begins with eval_run_json();
// the file of another run is refused with a UsageError that names the difference. An Error during the run says how many documents are kept.
EvalReport run_eval(EvalModel& model, const EvalOptions& options, std::vector<EvalTaskRun> tasks);

// One task's metrics by lm-eval's names: {"task", "lm_eval", "task_version", "num_fewshot", "documents": [first, last + 1], "size"
// (documents of the whole task), "max_length", "cut" (EvalTaskRun::cut), "headline", "chance", "comparable", "tied", "aggregate": {"acc":
// {"value", "stderr"}}, "further": {…}, "per_document": [{"doc", "acc", …}]}. A chance of 0 means none. stderr is "N/A" where there is
// none.
Json eval_task_json(const EvalTaskRun& run, int64_t max_length);
// {"run": eval_run_json(), "tasks": [eval_task_json(), …], "complete"}. `based eval --json` prints it; reports and comparisons read it.
Json eval_report_json(const EvalReport& report);

}  // namespace based
