#include "based/eval/eval_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/eval/eval_run_results.h"

namespace based {
namespace {

constexpr const char* kHarness = "0.4.13";  // the version of lm-eval whose rules the tasks follow

uint64_t text_bytes(const EvalDocument& document) {
  uint64_t bytes = 0;
  for (const std::string& context : document.contexts) bytes += context.size();
  for (const EvalRequest& request : document.requests) bytes += request.continuation.size();
  return bytes;
}

// Documents [begin, end) of a task that are answered together.
struct EvalBlock {
  size_t task, begin, end;
};

std::vector<EvalBlock> blocks_of(const std::vector<EvalTaskRun>& tasks, uint64_t most_bytes) {
  std::vector<EvalBlock> blocks;
  for (size_t task = 0; task < tasks.size(); ++task) {
    const std::vector<EvalDocument>& documents = tasks[task].documents;
    for (size_t begin = 0, end = 0; begin < documents.size(); begin = end) {
      uint64_t bytes = 0;
      while (end < documents.size() && (end == begin || bytes < most_bytes)) bytes += text_bytes(documents[end++]);
      blocks.push_back({task, begin, end});
    }
  }
  return blocks;
}

// Covers all that determines the documents' results, apart from the model.
std::string documents_hash(const std::vector<EvalDocument>& documents) {
  Hasher128 hasher;
  const auto add = [&hasher](const std::string& text) {
    const std::string sized = std::to_string(text.size()) + ":" + text;
    hasher.update(std::as_bytes(std::span(sized)));
  };
  for (const EvalDocument& document : documents) {
    add(std::to_string(document.index) + dump_json(document.gold));
    add(dump_json({document.source, document.few_shot, document.fields}));
    for (const std::string& context : document.contexts) add(context);
    for (const EvalRequest& request : document.requests) {
      add(std::to_string(static_cast<int>(request.kind)) + " " + std::to_string(request.context) + " " +
          std::to_string(request.max_tokens));
      add(request.continuation);
      for (const std::string& stop : request.until) add(stop);
    }
  }
  return hasher.digest().hex();
}

EvalTaskRun prepare_task(const std::string& name, const EvalOptions& options, const Tokenizer& tokenizer) {
  EvalTaskRun run;
  run.kind = find_eval_task(name);
  if (options.shots > 0 && !run.kind.few_shot)
    throw UsageError("--shots " + std::to_string(options.shots) + ": task '" + name + "' has no examples; evaluate it in a run of its own");
  run.kind.comparable = run.kind.comparable && (options.shots == 0 || run.kind.published_examples);
  run.shots = options.shots;
  try {
    run.task = run.kind.make(
        {.data = options.data, .shots = options.shots, .seed = options.seed, .tokenizer = &tokenizer, .statements = options.statements});
  } catch (const UsageError& error) {
    throw UsageError("task '" + name + "': " + error.what());
  }
  const int64_t size = run.task->size();
  if (size < 1) throw Error("task '" + name + "': its data has no document");
  if (options.offset >= size)
    throw UsageError("--offset " + std::to_string(options.offset) + ": task '" + name + "' has " + std::to_string(size) + " documents");
  const int64_t left = size - options.offset;
  run.documents = run.task->documents(options.offset, options.limit > 0 ? std::min(options.limit, left) : left);
  return run;
}

std::string kept_message(const std::string& error, const EvalResultsFile* results, const std::string& out) {
  if (results == nullptr || results->documents() == 0) return error;
  return error + "; the results of " + std::to_string(results->documents()) + " documents are kept in " + out +
         ", and the same command continues";
}

Json figures_json(const std::map<std::string, EvalFigure>& figures) {
  Json json = Json::object();
  for (const auto& [name, figure] : figures)
    json[name] = {{"value", figure.value}, {"stderr", figure.standard_error ? Json(*figure.standard_error) : Json("N/A")}};
  return json;
}

class EvalLoop {
 public:
  EvalLoop(EvalModel& model, const EvalOptions& options, EvalReport& report)
      : model_(model), options_(options), report_(report), blocks_(blocks_of(report.tasks, model.block_bytes())) {
    std::vector<size_t> ends;
    for (const EvalBlock& block : blocks_) total_ += block.end - block.begin, ends.push_back(total_);
    if (!options.out.empty()) results_ = std::make_unique<EvalResultsFile>(options.out, report.run, report.tasks, ends);
  }

  void run() {
    const InterruptScope interrupts;
    size_t done = results_ ? results_->documents() : 0;
    if (done > 0) log_info(options_.out + " has the results of " + std::to_string(done) + " of " + std::to_string(total_) + " documents");
    Progress progress("eval", static_cast<int64_t>(total_), {}, static_cast<int64_t>(done));
    started_ = std::chrono::steady_clock::now();
    for (const EvalBlock& block : blocks_) {
      if (report_.tasks[block.task].measured.size() >= block.end) continue;
      try {
        if (!answer(block, progress, done)) break;
        done += block.end - block.begin;
        progress.update(static_cast<int64_t>(done), fields(block.task, 0));
      } catch (const UsageError&) {
        throw;
      } catch (const Error& error) {
        throw Error(kept_message(error.what(), results_.get(), options_.out));
      }
    }
    progress.finish();
    report_.interrupted = done < total_;
  }

 private:
  Progress::Fields fields(size_t task, int64_t tokens) const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    const auto all = static_cast<double>(tokens_ + tokens);
    Progress::Fields fields{{"task", report_.tasks[task].kind.name}};
    if (all > 0) fields.emplace_back("tokens/s", format_count(all / std::max(seconds, 1e-9)));
    return fields;
  }

  // False: interrupted, and the block has no results.
  bool answer(const EvalBlock& block, Progress& progress, size_t done) {
    EvalTaskRun& task = report_.tasks[block.task];
    const std::span<const EvalDocument> documents = std::span(task.documents).subspan(block.begin, block.end - block.begin);
    int64_t tokens = 0;
    std::vector<std::vector<EvalAnswer>> answers = model_.answer(documents, [&](int64_t answered) {
      tokens = answered;
      progress.update(static_cast<int64_t>(done), fields(block.task, tokens));
      return !interrupted();
    });
    if (answers.size() < documents.size()) return false;
    tokens_ += tokens;
    for (size_t i = 0; i < documents.size(); ++i) {
      task.measured.push_back(task.task->measure(documents[i], answers[i]));
      task.answers.push_back(std::move(answers[i]));
    }
    if (results_) results_->add_block(task, block.begin, block.end);
    return true;
  }

  EvalModel& model_;
  const EvalOptions& options_;
  EvalReport& report_;
  std::vector<EvalBlock> blocks_;
  size_t total_ = 0;
  std::unique_ptr<EvalResultsFile> results_;
  std::chrono::steady_clock::time_point started_;
  int64_t tokens_ = 0;
};

}  // namespace

EvalFigures EvalTaskRun::figures() const { return task->aggregate(std::span(documents).first(measured.size()), measured); }

int64_t EvalTaskRun::tied() const {
  int64_t count = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::vector<EvalRequest>& requests = documents[i].requests;
    const bool choices = requests.size() > 1 && std::all_of(requests.begin(), requests.end(), [](const EvalRequest& request) {
                           return request.kind == EvalRequest::Kind::score;
                         });
    count += choices && std::all_of(answers[i].begin(), answers[i].end(),
                                    [&](const EvalAnswer& answer) { return answer.log_likelihood == answers[i].front().log_likelihood; });
  }
  return count;
}

int64_t EvalTaskRun::cut() const {
  return std::count_if(answers.begin(), answers.end(), [](const std::vector<EvalAnswer>& document) {
    return std::any_of(document.begin(), document.end(), [](const EvalAnswer& answer) { return answer.tokens_cut > 0; });
  });
}

bool EvalTaskRun::at_chance(const EvalFigures& figures) const {
  const auto found = figures.metrics.find(kind.headline);
  if (kind.chance <= 0 || found == figures.metrics.end() || !found->second.standard_error) return false;
  return std::abs(found->second.value - kind.chance) <= 2 * *found->second.standard_error;
}

std::vector<EvalTaskRun> prepare_eval(const EvalOptions& options, const Tokenizer& tokenizer) {
  if (options.tasks.empty()) throw UsageError("--tasks names no task; `based eval --list` lists them");
  std::set<std::string> names;
  std::vector<EvalTaskRun> tasks;
  for (const std::string& name : options.tasks) {
    tasks.push_back(prepare_task(name, options, tokenizer));
    const std::string& known = tasks.back().kind.name;  // that of a file, or of an alias, differs
    if (!names.insert(known).second)
      throw UsageError("--tasks names the task '" + known + "' twice" +
                       (name == known ? "" : "; " + in_quotes(name) + " is the second, and a .toml file may have another 'name'"));
  }
  return tasks;
}

Json eval_run_json(const EvalModel& model, const EvalOptions& options, const std::vector<EvalTaskRun>& tasks) {
  Json json{{"model", model.description()},
            {"options", {{"shots", options.shots}, {"seed", options.seed}, {"offset", options.offset}, {"limit", options.limit}}}};
  Json& list = json["tasks"] = Json::object();
  for (const EvalTaskRun& run : tasks)
    list[run.kind.name] = {{"documents", run.documents.size()}, {"requests", documents_hash(run.documents)}, {"metric", run.kind.headline}};
  return json;
}

EvalReport run_eval(EvalModel& model, const EvalOptions& options, std::vector<EvalTaskRun> tasks) {
  EvalReport report;
  report.run = eval_run_json(model, options, tasks);
  report.tasks = std::move(tasks);
  report.max_length = model.max_length();
  EvalLoop(model, options, report).run();
  return report;
}

Json eval_task_json(const EvalTaskRun& run, int64_t max_length) {
  Json json{{"task", run.kind.name}, {"lm_eval", kHarness}, {"task_version", run.kind.version}, {"num_fewshot", run.shots}};
  json["documents"] = {run.documents.front().index, run.documents.front().index + static_cast<int64_t>(run.measured.size())};
  json["size"] = run.task->size();
  json["max_length"] = max_length;
  json["cut"] = run.cut();
  json["headline"] = run.kind.headline;
  json["chance"] = run.kind.chance;  // 0: none
  json["comparable"] = run.kind.comparable;
  json["tied"] = run.tied();
  const EvalFigures figures = run.measured.empty() ? EvalFigures{} : run.figures();
  json["aggregate"] = figures_json(figures.metrics);
  if (!figures.further.empty()) json["further"] = figures_json(figures.further);
  Json& list = json["per_document"] = Json::array();
  for (size_t i = 0; i < run.measured.size(); ++i) {
    Json item{{"doc", run.documents[i].index}};
    item.update(run.measured[i]);
    list.push_back(std::move(item));
  }
  return json;
}

Json eval_report_json(const EvalReport& report) {
  Json json{{"run", report.run}, {"tasks", Json::array()}, {"complete", !report.interrupted}};
  for (const EvalTaskRun& run : report.tasks) json["tasks"].push_back(eval_task_json(run, report.max_length));
  return json;
}

}  // namespace based
