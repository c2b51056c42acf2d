#include "based/eval/tasks/hellaswag.h"

#include <utility>

#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/multiple_choice.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

constexpr int64_t kHellaswagEndings = 4;

// The published lines have ctx_a, ctx_b and activity_label. Lines without ctx_a are in text form: `ctx` and the endings are preprocessed.
ChoiceItem read_hellaswag(const DataField& line, int64_t row) {
  ChoiceItem item{.place = line.place(), .source = {{"row", row}}, .context = "", .choices = line.texts("endings")};
  if (static_cast<int64_t>(item.choices.size()) != kHellaswagEndings) line.at("endings").refuse("a list of 4 strings");
  if (line.has("ctx_a")) {
    item.context = hellaswag_context(line.text("activity_label"), line.text("ctx_a"), line.text("ctx_b"));
    for (std::string& ending : item.choices) ending = hellaswag_preprocessed(ending);
  } else {
    item.context = line.text("ctx");
  }
  item.gold = line.index("label", item.choices.size());
  return item;
}

}  // namespace

std::string hellaswag_preprocessed(std::string_view text) {
  const std::string titled = replace_all(python_strip(text), " [title]", ". ");
  std::string plain;
  for (size_t at = 0; at < titled.size();) {
    if (titled[at] == '[') {
      const size_t end = titled.find_first_of("]\n", at);  // a bracket on another line does not close this one
      if (end != std::string::npos && titled[end] == ']') {
        at = end + 1;
        continue;
      }
    }
    plain += titled[at++];
  }
  return replace_all(plain, "  ", " ");
}

std::string hellaswag_context(std::string_view activity_label, std::string_view ctx_a, std::string_view ctx_b) {
  return hellaswag_preprocessed(std::string(activity_label) + ": " + std::string(ctx_a) + " " + python_capitalize(ctx_b));
}

EvalTaskKind eval_task_hellaswag() {
  return {.name = "hellaswag",
          .summary = "HellaSwag: the continuation of a description, out of four (hellaswag/hellaswag_val.jsonl)",
          .headline = "acc_norm",
          .chance = 0.25,
          .version = "1.0",
          .make = [](const EvalTaskOptions& options) {
            std::vector<ChoiceItem> items;
            read_json_lines(data_file(options, "hellaswag/hellaswag_val.jsonl"),
                            [&items](const DataField& line, int64_t row) { items.push_back(read_hellaswag(line, row)); });
            return std::make_unique<MultipleChoiceTask>(std::move(items), std::vector<std::string>{"acc", "acc_norm"});
          }};
}

}  // namespace based
