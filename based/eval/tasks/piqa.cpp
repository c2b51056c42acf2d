// PIQA: the better of two ways to reach a physical goal.
#include <utility>

#include "based/core/files.h"
#include "based/core/text.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/multiple_choice.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

// One label a line, 0 or 1.
std::vector<int64_t> read_piqa_labels(const std::string& path) {
  const std::string content = read_file(path);
  std::vector<int64_t> labels;
  std::string_view rest = content;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = python_strip(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line != "0" && line != "1") throw Error(path + ":" + std::to_string(number) + ": the label must be 0 or 1, is " + in_quotes(line));
    labels.push_back(line == "1");
  }
  return labels;
}

std::vector<ChoiceItem> read_piqa(const EvalTaskOptions& options) {
  const std::string path = data_file(options, "piqa/valid.jsonl"), labels_path = data_file(options, "piqa/valid-labels.lst");
  const std::vector<int64_t> labels = read_piqa_labels(labels_path);
  std::vector<ChoiceItem> items;
  read_json_lines(path, [&](const DataField& line, int64_t row) {
    if (row >= static_cast<int64_t>(labels.size())) throw Error(labels_path + ": has no label for " + line.place());
    items.push_back({.place = line.place(),
                     .source = {{"row", row}},
                     .context = "Question: " + line.text("goal") + "\nAnswer:",
                     .choices = {line.text("sol1"), line.text("sol2")},
                     .gold = labels[static_cast<size_t>(row)]});
  });
  if (items.size() != labels.size())
    throw Error(labels_path + ": has " + std::to_string(labels.size()) + " labels for the " + std::to_string(items.size()) + " lines of " +
                path);
  return items;
}

}  // namespace

EvalTaskKind eval_task_piqa() {
  return {.name = "piqa",
          .summary = "PIQA: the better of two ways to reach a physical goal (piqa/valid.jsonl, valid-labels.lst)",
          .headline = "acc",
          .chance = 0.5,
          .version = "1.0",
          .make = [](const EvalTaskOptions& options) {
            return std::make_unique<MultipleChoiceTask>(read_piqa(options), std::vector<std::string>{"acc", "acc_norm"});
          }};
}

}  // namespace based
