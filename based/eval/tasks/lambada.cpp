// LAMBADA: the last word of a passage of a novel.
#include <utility>

#include "based/eval/tasks/completion.h"
#include "based/eval/tasks/json_reader.h"

namespace based {
namespace {

// lm-eval splits at U+0020 alone: a text that ends with a space has the continuation " ", one without spaces has the context "".
CompletionItem read_lambada(const DataField& line, int64_t row) {
  const std::string& text = line.text("text");
  const size_t space = text.rfind(' ');
  const bool one_word = space == std::string::npos;
  return {line.place(), {{"row", row}}, one_word ? "" : text.substr(0, space), " " + (one_word ? text : text.substr(space + 1))};
}

}  // namespace

EvalTaskKind eval_task_lambada_openai() {
  return {.name = "lambada_openai",
          .summary = "LAMBADA: the last word of a passage (lambada/lambada_test.jsonl)",
          .headline = "acc",
          .version = "1.0",
          .make = [](const EvalTaskOptions& options) {
            std::vector<CompletionItem> items;
            read_json_lines(data_file(options, "lambada/lambada_test.jsonl"),
                            [&items](const DataField& line, int64_t row) { items.push_back(read_lambada(line, row)); });
            return make_completion_task(std::move(items));
          }};
}

}  // namespace based
