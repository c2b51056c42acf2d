// A user's own task, which a TOML file describes:
//
//   data = "capitals.jsonl"                         # JSON lines, relative to this file
//   context = "Question: {question}\nAnswer:"       # {question} is a field of a line; {a.b} a field of an object; {{ and }} are braces
//   choices_field = "options"                       # a field with a list; or choices = ["no", "yes"], a list of templates
//   gold = "label"                                  # a field: the index of the right choice, from 0, or its text
//   metric = "acc_norm"                             # of the tables
//
// Without choices the task is a completion: `gold` is the field of the expected text. The metrics acc and perplexity score that text;
// contains, exact and f1 compare it with generated text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/eval/task.h"

namespace based {

struct CustomTaskConfig {
  std::string name, data, context, choices_field, gold;
  std::vector<std::string> choices, labels;
  std::string metric = "acc";
  double chance = 0;
  std::string delimiter = " ";
  std::vector<std::string> until = {"\n"};
  int64_t max_tokens = 48;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "in reports; by default the file's name without .toml");
    field("data", data, "JSON lines, relative to this file");
    field("context", context, "template: {field} is a string or an integer of the line");
    field("choices", choices, "templates of the choices, if every line has the same number of them");
    field("choices_field", choices_field, "field: a list of strings, the choices");
    field("gold", gold, "field: index of the right choice, from 0, or its text; the text that completes the context");
    field("labels", labels, "values of the field `gold`, in the order of the choices, if these are not their texts");
    field("metric", metric,
          "of the tables: acc, acc_norm, acc_bytes, exact_match with choices; acc, perplexity, contains, exact, f1 without");
    field("chance", chance, "the metric's value for a model that guesses; 0: none");
    field("delimiter", delimiter, "between the context and a choice or completion");
    field("until", until, "strings that end generated text");
    field("max_tokens", max_tokens, "generated at most");
  }
};

// Reads a task's TOML file; the data are read when the task is made. Throws UsageError naming file, line and key. Errors in the data name
// the key that refers to them too.
EvalTaskKind read_custom_task(const std::string& path);

}  // namespace based
