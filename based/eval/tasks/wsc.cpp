// SuperGLUE's Winograd schemas: whether a pronoun refers to a noun phrase. Spans are numbered by words between white space.
#include <algorithm>
#include <memory>
#include <utility>

#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/superglue.h"

namespace based {

namespace {

struct WscSpan {
  int64_t index = 0;  // the number of its first word
  std::string text;
};

std::string wsc_detokenized(std::string text) {
  static constexpr std::pair<const char*, const char*> kReplacements[] = {{" n't", "n't"}, {" )", ")"}, {"( ", "("}, {"\" ", "\""},
                                                                          {" \"", "\""},   {" '", "'"}, {" .", "."}, {" ,", ","}};
  for (const auto& [spaced, joined] : kReplacements) text = replace_all(text, spaced, joined);
  return text;
}

// The span `name` of a line. A span that is not in the passage is corrected as in the published data set "wsc.fixed": its first letter gets
// the case of the passage's word, it loses final periods, and its line breaks become spaces.
WscSpan read_wsc_span(const DataField& line, const std::string& name) {
  const std::string& passage = line.text("text");
  const std::vector<std::string_view> words = python_split(passage);
  const DataField target = line.at("target");
  WscSpan span{target.integer(name + "_index", 0, std::ssize(words) - 1), target.text(name + "_text")};
  if (passage.find(span.text) != std::string::npos) return span;
  const std::string_view word_letter = python_slice(words[static_cast<size_t>(span.index)], 0, 1);
  const std::string_view letter = python_slice(span.text, 0, 1);
  const bool lower = python_capitalize(word_letter) != word_letter;
  std::string text = (lower ? python_lower(letter) : python_capitalize(letter)) + span.text.substr(letter.size());
  text.resize(text.find_last_not_of('.') + 1);
  span.text = replace_all(text, "\n", " ");
  if (passage.find(span.text) == std::string::npos) target.at(name + "_text").refuse("a part of 'text'");
  return span;
}

void read_wsc(const DataField& line, std::vector<ChoiceItem>& items) {
  const std::string& passage = line.text("text");
  const WscSpan noun = read_wsc_span(line, "span1"), pronoun = read_wsc_span(line, "span2");
  const std::vector<std::string_view> words = python_split(passage);
  std::string before;
  for (size_t i = 0; i < static_cast<size_t>(pronoun.index); ++i) before += (i > 0 ? " " : "") + std::string(words[i]);
  // lm-eval finds the rest by the length of the words before, joined by single spaces: other white space in the passage shifts it.
  const int64_t rest = count_characters(before) + count_characters(pronoun.text) + 1;
  const std::string after(python_slice(passage, rest, std::max(rest, count_characters(passage))));
  items.push_back({.context = "Passage: " + wsc_detokenized(before + " *" + pronoun.text + "*" + after) +
                              "\nQuestion: In the passage above, does the pronoun \"*" + pronoun.text + "*\" refer to \"*" + noun.text +
                              "*\"?\nAnswer:",
                   .choices = {"no", "yes"},
                   .gold = line.at("label").truth() ? 1 : 0});
}

}  // namespace

EvalTaskKind eval_task_wsc() {
  return {.name = "wsc",
          .summary = "Winograd schemas: whether a pronoun refers to a noun phrase (superglue/WSC)",
          .headline = "acc",
          .chance = 0.5,
          .few_shot = true,
          .version = "1.0",
          .make = [](const EvalTaskOptions& options) -> std::unique_ptr<EvalTask> {
            SuperGlueData data = read_superglue(options, {"superglue/WSC/val.jsonl", "superglue/WSC/train.jsonl"}, read_wsc);
            return std::make_unique<FewShotChoiceTask>(std::move(data.items), std::vector<std::string>{"acc"}, std::move(data.pool));
          }};
}

}  // namespace based
