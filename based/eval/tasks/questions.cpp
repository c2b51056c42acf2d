// Sets of questions with their choices and the index of the right one: ARC (easy and challenge), OpenBookQA, Social IQa.
#include <utility>

#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/multiple_choice.h"

namespace based {
namespace {

struct QuestionSet {
  const char* name;
  const char* summary;
  const char* file;
  const char *before, *after;  // the question in the context
  const char* headline;
  double chance;
  const char* version;
  std::vector<std::string> listed;
};

std::vector<ChoiceItem> read_questions(const QuestionSet& set, const std::string& path) {
  std::vector<ChoiceItem> items;
  read_json_lines(path, [&](const DataField& line, int64_t row) {
    ChoiceItem item{.place = line.place(),
                    .source = {{"row", row}},
                    .context = set.before + line.text("question") + set.after,
                    .choices = line.texts("choices")};
    if (item.choices.size() < 2) line.at("choices").refuse("a list of two or more strings");
    item.gold = line.index("label", item.choices.size());
    items.push_back(std::move(item));
  });
  return items;
}

EvalTaskKind question_task(const QuestionSet& set) {
  return {.name = set.name,
          .summary = set.summary + std::string(" (") + set.file + ")",
          .headline = set.headline,
          .chance = set.chance,
          .version = set.version,
          .make = [set](const EvalTaskOptions& options) {
            return std::make_unique<MultipleChoiceTask>(read_questions(set, data_file(options, set.file)), set.listed);
          }};
}

}  // namespace

EvalTaskKind eval_task_arc_easy() {
  return question_task({.name = "arc_easy",
                        .summary = "ARC-Easy: school science questions",
                        .file = "commonsense-llm-adapters/ARC-Easy/test.parsed.jsonl",
                        .before = "Question: ",
                        .after = "\nAnswer:",
                        .headline = "acc",
                        .chance = 0.25,
                        .version = "1.0",
                        .listed = {"acc", "acc_norm"}});
}

EvalTaskKind eval_task_arc_challenge() {
  return question_task({.name = "arc_challenge",
                        .summary = "ARC-Challenge: science questions that retrieval and co-occurrence do not answer",
                        .file = "commonsense-llm-adapters/ARC-Challenge/test.parsed.jsonl",
                        .before = "Question: ",
                        .after = "\nAnswer:",
                        .headline = "acc_norm",
                        .chance = 0.25,
                        .version = "1.0",
                        .listed = {"acc", "acc_norm"}});
}

EvalTaskKind eval_task_openbookqa() {
  return question_task({.name = "openbookqa",
                        .summary = "OpenBookQA: elementary science, without the book of facts",
                        .file = "commonsense-llm-adapters/openbookqa/test.parsed.jsonl",
                        .before = "",
                        .after = "",
                        .headline = "acc_norm",
                        .chance = 0.25,
                        .version = "1.0",
                        .listed = {"acc", "acc_norm"}});
}

EvalTaskKind eval_task_social_iqa() {
  return question_task({.name = "social_iqa",
                        .summary = "Social IQa: motives and reactions of people, out of three",
                        .file = "commonsense-llm-adapters/social_i_qa/test.parsed.jsonl",
                        .before = "Q: ",
                        .after = "\nA:",
                        .headline = "acc",
                        .chance = 1.0 / 3,
                        .version = "0.0",
                        .listed = {"acc"}});
}

}  // namespace based
