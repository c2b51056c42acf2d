#include "based/eval/eval_run.h"

#include <algorithm>
#include <chrono>

#include "apps/command.h"
#include "apps/eval_reports.h"
#include "apps/place.h"
#include "based/core/files.h"
#include "based/core/progress.h"
#include "based/core/text_table.h"
#include "based/eval/request_dump.h"
#include "based/eval/request_stub.h"
#include "based/eval/scorer_model.h"

namespace based::apps {
namespace eval_command {

constexpr const char* kStub = "stub";
constexpr int64_t kStubMaxLength = 2048;

struct Options {
  EvalOptions eval;
  ScorerOptions scorer;
  std::string model, tasks, tokenizer, device = "cpu", dtype, dump_requests;
  int64_t max_length = 0, left_pad = 0;
  bool list = false, no_fork = false, json = false;
};

void print_tasks(bool json) {
  if (!json) {
    size_t width = 0;
    for (const EvalTaskKind& kind : eval_task_kinds()) width = std::max(width, kind.name.size());
    for (const EvalTaskKind& kind : eval_task_kinds()) {
      print_line(padded(kind.name, width) + "  " + kind.summary + "; " + kind.headline +
                 (kind.chance > 0 ? ", chance " + format_number(kind.chance, 3) : "") + (kind.few_shot ? "; takes --shots" : "") +
                 (kind.comparable ? "" : "; not comparable with published figures"));
    }
    return;
  }
  Json list = Json::array();
  for (const EvalTaskKind& kind : eval_task_kinds()) {
    list.push_back({{"name", kind.name},
                    {"summary", kind.summary},
                    {"headline", kind.headline},
                    {"chance", kind.chance > 0 ? Json(kind.chance) : Json(nullptr)},
                    {"few_shot", kind.few_shot},
                    {"comparable", kind.comparable}});
  }
  print_line(dump_json(list));
}

std::vector<std::string> split_names(const std::string& tasks) {
  std::vector<std::string> names;
  for (size_t begin = 0, end = 0; begin <= tasks.size(); begin = end + 1) {
    end = std::min(tasks.find(',', begin), tasks.size());
    if (end == begin) throw UsageError("--tasks has an empty name: " + in_quotes(tasks));
    names.push_back(tasks.substr(begin, end - begin));
  }
  return names;
}

// The model of the run. A scorer refers to the text model.
struct Loaded {
  TextModel text;
  std::unique_ptr<EvalModel> model;
  const ScorerModel* scorer = nullptr;  // null: the stub model
};

std::unique_ptr<Loaded> load(const Options& options) {
  auto loaded = std::make_unique<Loaded>();
  if (options.model == kStub) {
    const std::pair<const char*, bool> unused[] = {{"--device", options.device != "cpu"},
                                                   {"--dtype", !options.dtype.empty()},
                                                   {"--batch", options.scorer.batch != ScorerOptions().batch},
                                                   {"--no-fork", options.no_fork},
                                                   {"--invariant", options.scorer.invariant},
                                                   {"--padded-columns", options.scorer.padded_columns},
                                                   {"--left-pad", options.left_pad > 0}};
    for (const auto& [name, given] : unused)
      if (given) throw UsageError(std::string(name) + " is for a model; --model stub computes nothing");
    if (options.tokenizer.empty() && options.eval.data.empty())
      throw UsageError("--model stub needs --tokenizer, or --data, whose gpt2-bpe is the default");
    const std::string tokenizer = options.tokenizer.empty() ? path_in(options.eval.data, "gpt2-bpe") : options.tokenizer;
    loaded->model = std::make_unique<StubModel>(make_tokenizer(tokenizer), options.max_length > 0 ? options.max_length : kStubMaxLength);
    return loaded;
  }
  if (!options.tokenizer.empty()) throw UsageError("--tokenizer goes with --model stub; other models have their own");
  const Place place = parse_place(options.device, options.dtype);
  loaded->text = load_text_model(options.model, place.dtype, place.device);
  ScorerOptions scorer = options.scorer;
  scorer.fork = !options.no_fork;
  scorer.model = options.model;
  auto model = std::make_unique<ScorerModel>(loaded->text, scorer, options.max_length, options.left_pad);
  loaded->scorer = model.get();
  loaded->model = std::move(model);
  return loaded;
}

void dump_requests(const std::string& path, const std::vector<EvalTaskRun>& tasks, const EvalModel& model) {
  AtomicFile file(path);
  for (const EvalTaskRun& task : tasks) {
    for (const EvalDocument& document : task.documents) {
      Json json = document_requests(model.tokenizer(), document, model.max_length());
      if (tasks.size() > 1) json["task"] = task.kind.name;
      const std::string line = dump_json(json) + "\n";
      file.write(std::as_bytes(std::span(line)));
    }
  }
  file.commit();
}

std::string figure_text(const EvalFigure& figure) {
  constexpr int digits = 4;
  return format_number(figure.value, digits) + (figure.standard_error ? " ± " + format_number(*figure.standard_error, digits) : "");
}

void print_figures(const EvalReport& report) {
  std::vector<std::vector<std::string>> rows{{"task", "shots", "documents", "metric", "value", "chance"}};
  std::vector<std::string> warnings;
  for (const EvalTaskRun& run : report.tasks) {
    const std::string& name = run.kind.name;
    if (run.measured.empty()) {
      warnings.push_back(name + ": no document was finished");
      continue;
    }
    const EvalFigures figures = run.figures();
    for (const auto& [metric, figure] : figures.metrics) {
      const bool chance = metric == run.kind.headline && run.kind.chance > 0;
      rows.push_back({name, std::to_string(run.shots), grouped(static_cast<int64_t>(run.measured.size())), metric, figure_text(figure),
                      chance ? format_number(run.kind.chance, 4) : "-"});
    }
    if (run.at_chance(figures)) warnings.push_back(name + ": " + run.kind.headline + " is within two standard errors of chance");
    if (run.tied() == static_cast<int64_t>(run.measured.size()))
      warnings.push_back(name + ": the choices of every document have the same log-likelihood");
    if (run.cut() > 0)
      warnings.push_back(name + ": the contexts of " + grouped(run.cut()) + " of " + grouped(static_cast<int64_t>(run.measured.size())) +
                         " documents were cut on the left to " + grouped(report.max_length) + " tokens");
    if (!run.kind.comparable) warnings.push_back(name + ": " + kNotComparable);
  }
  for (const std::string& line : aligned_columns(rows)) print_line(line);
  for (const std::string& warning : warnings) print_line(warning);
}

Json cost_json(const Scorer& scorer, double seconds) {
  return {{"seconds", seconds}, {"tokens", scorer.tokens()}, {"tokens_read", scorer.tokens_read()}, {"forks", scorer.forks()}};
}

void print_cost(const Scorer& scorer, double seconds) {
  if (scorer.tokens() == 0) return;  // all results were in the file
  const double share = static_cast<double>(scorer.tokens()) / static_cast<double>(std::max<int64_t>(scorer.tokens_read(), 1));
  print_message("read " + format_count(static_cast<double>(scorer.tokens_read())) + " tokens for requests of " +
                format_count(static_cast<double>(scorer.tokens())) + " in " + format_duration(seconds) +
                (scorer.forks() ? ": shared prefixes save " + format_number(share, 2) + " times the tokens" : ""));
}

// Refuses options that none of the tasks use.
void check_used(const Options& options, const std::vector<EvalTaskRun>& tasks) {
  const auto any_task = [&](const auto& uses) { return std::any_of(tasks.begin(), tasks.end(), uses); };
  if (!options.eval.statements.empty() && !any_task([](const EvalTaskRun& task) { return task.kind.name == "squad_completion"; }))
    throw UsageError("--statements is for the task squad_completion, which --tasks does not name");
  const auto generates = [](const EvalTaskRun& task) {
    return task.documents.front().requests.front().kind == EvalRequest::Kind::generate;
  };
  if (options.left_pad > 0 && !any_task(generates))
    throw UsageError("--left-pad is for tasks that generate text, of which --tasks names none");
}

void run(Options options) {
  if (options.list) return print_tasks(options.json);
  if (options.model.empty() || options.tasks.empty()) throw UsageError("eval needs --model DIR and --tasks NAMES; --list lists the tasks");
  options.eval.tasks = split_names(options.tasks);
  for (const std::string& name : options.eval.tasks)
    if (options.eval.data.empty() && !is_custom_task(name))
      throw UsageError("--tasks " + name + " needs --data, the folder of the data sets");
  for (const std::string& path : {options.eval.out, options.dump_requests})
    if (!path.empty()) check_writable(path);
  const std::unique_ptr<Loaded> loaded = load(options);
  std::vector<EvalTaskRun> tasks = prepare_eval(options.eval, loaded->model->tokenizer());
  check_used(options, tasks);
  if (!options.dump_requests.empty()) dump_requests(options.dump_requests, tasks, *loaded->model);
  const auto start = std::chrono::steady_clock::now();
  const EvalReport report = run_eval(*loaded->model, options.eval, std::move(tasks));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) {
    Json json = eval_report_json(report);
    if (loaded->scorer != nullptr) json["cost"] = cost_json(loaded->scorer->scorer(), seconds);
    print_line(dump_json(json));
  } else {
    print_figures(report);
    if (loaded->scorer != nullptr) print_cost(loaded->scorer->scorer(), seconds);
  }
  if (!report.interrupted) return;
  print_message("interrupted; the figures are those of the finished documents" +
                (options.eval.out.empty() ? "" : ", which are kept in " + options.eval.out + ", and the same command continues"));
  throw Exit{1};
}

void add_scoring_options(CommandLine app, Options& options) {
  constexpr int64_t most = int64_t{1} << 20;
  app.add_option(
      "--batch", options.scorer.batch,
      "requests that are read at the same time; affects only the speed; 0: 8 on the CPU, 64 to 256 on a GPU, as the state's bytes allow; "
      "of requests that share no prefix, as many as have 4,096 tokens, 32,768 on a GPU",
      {0, most});
  app.add_option("--max-length", options.max_length,
                 "tokens that a request may read; longer contexts are cut on the left; 0: the model's positions, or 2,048 without a limit",
                 {0, int64_t{1} << 30});
  app.add_flag("--no-fork", options.no_fork,
               "read every request from its first token (default: a prefix that requests share is read once, and its state is copied)");
  app.add_flag("--invariant", options.scorer.invariant,
               "the bits of a request's results do not depend on other requests, --batch and --no-fork; slower");
  app.add_flag("--padded-columns", options.scorer.padded_columns,
               "include the embedding's padding rows in the softmax, as published harnesses do (default: only the tokenizer's tokens)");
  app.add_option("--left-pad", options.left_pad,
                 "pad the contexts of generations on the left with the end-of-text token, in batches of so many, as the published recall "
                 "runs did; 0: no padding",
                 {0, most});
  app.add_option("--device", options.device, "cpu, cuda or cuda:N");
  app.add_option("--dtype", options.dtype, kDtypeHelp);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("--model", options->model,
                 "the model's folder; stub: answers that are hashes of the requests, to compare requests and metrics");
  app.add_option("--tasks", options->tasks, "tasks separated by commas, or .toml files of your own tasks; --list lists the names");
  app.add_option("--data", options->eval.data, "folder of the unpacked data sets; own tasks name their data themselves");
  app.add_flag("--list", options->list, "list the tasks and stop");
  app.add_option("--shots", options->eval.shots, "examples before each document", {0, 1000});
  app.add_option("--seed", options->eval.seed, "seed of the draws of examples; lm-eval's is 1234", {0, UINT32_MAX});
  app.add_option("--offset", options->eval.offset, "documents of each task to leave out at the beginning", {0, INT64_MAX});
  app.add_option("--limit", options->eval.limit, "documents of each task to evaluate; 0: all", {0, INT64_MAX});
  app.add_option("--statements", options->eval.statements,
                 "for squad_completion: JSON lines with id, statement and value, or a file of --dump-requests");
  app.add_option("--out", options->eval.out,
                 "write the results of each document to this file, JSON lines; if an earlier run of the same command was stopped, its file "
                 "is continued",
                 kPath);
  app.add_option("--dump-requests", options->dump_requests,
                 "write every request to this file, JSON lines: texts, ids, hashes, cuts, examples, and the stub model's answers", kPath);
  app.add_option("--tokenizer", options->tokenizer, "for --model stub: folder of the tokenizer, or bytes (default: gpt2-bpe in --data)");
  add_scoring_options(app, *options);
  app.add_flag("--json", options->json, "print JSON: figures in total and for each document, by lm-eval's names");
  app.offer("--model", {"stub"}, true);
  app.offer(
      "--tasks", [] { return names_of(eval_task_kinds()); }, true);
  app.callback([options] { run(*options); });
  add_eval_reports(app);
}

}  // namespace eval_command

const Command command_eval{"eval", "Evaluate a model on tasks as lm-eval does", eval_command::setup};

}  // namespace based::apps
