#include "apps/eval_reports.h"

#include "based/core/json.h"
#include "based/eval/compare.h"
#include "based/eval/report.h"

namespace based::apps {
namespace eval_reports_command {

struct CompareOptions {
  std::string first, second;
  bool left_pad = false, json = false;
};

struct TableOptions {
  std::vector<std::string> files;
  std::string paper, form = "markdown";
};

Json paired_json(const PairedResult& result) {
  Json json{{"task", result.task},   {"metric", result.metric}, {"documents", result.documents},
            {"first", result.first}, {"second", result.second}, {"difference", result.difference}};
  json["stderr"] = result.standard_error ? Json(*result.standard_error) : Json("N/A");
  if (result.standard_error) json["interval"] = {result.low(), result.high()};
  return json;
}

std::string paired_line(const PairedResult& result) {
  constexpr int digits = 4;
  std::string line = result.task + " " + result.metric + ": " + format_number(result.first, digits) + " -> " +
                     format_number(result.second, digits) + ", difference " + format_number(result.difference, digits);
  if (!result.standard_error) return line + " over one document, without an error";
  return line + " ± " + format_number(*result.standard_error, digits) + ", 95 % from " + format_number(result.low(), digits) + " to " +
         format_number(result.high(), digits) + ", over " + grouped(result.documents) + " documents" +
         (result.resolved() ? "" : " (not resolved)");
}

void compare(const CompareOptions& options) {
  for (const std::string& path : {options.first, options.second})
    if (path.ends_with(".jsonl"))
      throw UsageError(path + ": compare needs the results of single documents, which the output of `based eval --json` has");
  const ModelResults first = read_eval_results(options.first), second = read_eval_results(options.second);
  const PairedResults results = compare_results(first, second, options.left_pad);
  if (!options.json) {
    print_line("from " + first.name + " to " + second.name);
    for (const PairedResult& result : results.differences) print_line(paired_line(result));
    for (const std::string& metric : results.not_compared) print_line("not compared, because it is no mean over documents: " + metric);
    return;
  }
  Json list = Json::array();
  for (const PairedResult& result : results.differences) list.push_back(paired_json(result));
  print_line(
      dump_json({{"first", first.run}, {"second", second.run}, {"differences", std::move(list)}, {"not_compared", results.not_compared}}));
}

void table(const TableOptions& options) {
  if (options.form != "markdown" && options.form != "latex" && options.form != "json")
    throw UsageError("--form must be markdown, latex or json, is " + in_quotes(options.form));
  const TableForm form = options.form == "latex" ? TableForm::latex : TableForm::markdown;
  std::vector<ModelResults> results;
  for (const std::string& path : options.files) {
    if (!path.ends_with(".jsonl")) {
      results.push_back(read_eval_results(path));
      continue;
    }
    for (ModelResults& kept : read_kept_results(path)) results.push_back(std::move(kept));
  }
  results = join_results_of_models(std::move(results));
  if (options.form == "json") {
    for (const ModelResults& each : results) print_line(dump_json(results_json(each)));
    return;
  }
  std::string text = results.size() > 1 ? model_table(results, form) + "\n" : "";
  for (const ModelResults& each : results) {
    if (form == TableForm::markdown) text += "**" + each.name + "**\n\n";
    text += task_table(each, options.paper, form) + "\n";
  }
  print_text(escape_controls(text, true));
}

void setup_compare(CommandLine app) {
  auto options = std::make_shared<CompareOptions>();
  app.add_required("first", options->first, "results of the first model, the output of `based eval --json`");
  app.add_required("second", options->second, "results of the second model on the same tasks with the same options");
  app.add_flag("--left-pad", options->left_pad, "let --left-pad of the two evaluations differ, to measure the cost of padding");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { compare(*options); });
}

void setup_table(CommandLine app) {
  auto options = std::make_shared<TableOptions>();
  app.add_required("files", options->files,
                   "results, the output of `based eval --json`; several files make a table of models too; files of one model are joined. A "
                   "file .jsonl holds kept results, the output of `based eval table --form json`");
  app.add_option("--paper", options->paper, "a row of the paper's tables whose figures are printed beside: \"Based 363m/10b\"");
  app.add_option("--form", options->form, "markdown, latex, or json: one line a model, without the single documents");
  app.offer("--form", {"markdown", "latex", "json"});
  app.callback([options] { table(*options); });
}

}  // namespace eval_reports_command

void add_eval_reports(CommandLine eval) {
  eval_reports_command::setup_compare(eval.add_alternative("compare", "Paired differences of two models' results"));
  eval_reports_command::setup_table(eval.add_alternative("table", "Tables of results, in Markdown or LaTeX"));
}

}  // namespace based::apps
