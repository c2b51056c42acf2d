// WinoGrande: which of two names a blank stands for, by partial scoring: the rest of the sentence after either name in the blank.
#include <utility>

#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/multiple_choice.h"
#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

struct WinograndeItem {
  std::string place;
  int64_t row = 0;
  std::vector<std::string> contexts;
  std::string continuation;
  int64_t gold = 0;
};

WinograndeItem read_winogrande(const DataField& line, int64_t row) {
  const std::string& sentence = line.text("sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) line.at("sentence").refuse("a sentence with a blank '_'");
  const std::string before = sentence.substr(0, blank);
  const std::string& answer = line.text("answer");
  if (answer != "1" && answer != "2") line.at("answer").refuse("\"1\" or \"2\"");
  return {line.place(),
          row,
          {before + line.text("option1"), before + line.text("option2")},
          " " + std::string(python_strip(std::string_view(sentence).substr(blank + 1))),
          answer == "2"};
}

class WinograndeTask : public EvalTask {
 public:
  explicit WinograndeTask(const std::string& path) {
    read_json_lines(path, [this](const DataField& line, int64_t row) { items_.push_back(read_winogrande(line, row)); });
  }

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }

  EvalDocument document(int64_t index) const override {
    const WinograndeItem& item = items_[static_cast<size_t>(index)];
    EvalDocument document;
    document.place = item.place;
    document.source = {{"row", item.row}};
    document.contexts = item.contexts;
    for (size_t context = 0; context < item.contexts.size(); ++context)
      document.requests.push_back({.context = context, .continuation = item.continuation});
    document.gold = item.gold;
    return document;
  }

  // lm-eval's acc_norm divides by the lengths of the contexts, since these are its choices.
  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    const WinograndeItem& item = items_[static_cast<size_t>(document.index)];
    return measure_choices(item.contexts, item.gold, answers, {"acc"});
  }

  EvalFigures aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const override { return mean_figures(measured); }

 private:
  std::vector<WinograndeItem> items_;
};

}  // namespace

EvalTaskKind eval_task_winogrande() {
  return {
      .name = "winogrande",
      .summary = "WinoGrande: which of two names a blank stands for (winogrande/dev.jsonl)",
      .headline = "acc",
      .chance = 0.5,
      .version = "1.0",
      .make = [](const EvalTaskOptions& options) { return std::make_unique<WinograndeTask>(data_file(options, "winogrande/dev.jsonl")); }};
}

}  // namespace based
