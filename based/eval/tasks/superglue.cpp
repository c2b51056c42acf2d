#include "based/eval/tasks/superglue.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "based/core/utf8.h"
#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"

namespace based {

namespace {

struct SuperGlueFile {
  std::vector<ChoiceItem> items;
  std::vector<Hash128> rows;  // one hash an item: equal for rows that lm-eval would find equal
};

Hash128 hash_of_row(const Json& row) {
  const std::string text = dump_json(row);
  return xxh3_128(std::as_bytes(std::span(text)));
}

SuperGlueFile read_superglue_file(const EvalTaskOptions& options, const std::string& name, const SuperGlueReader& read) {
  SuperGlueFile file;
  std::vector<ChoiceItem>& items = file.items;
  read_json_lines(data_file(options, name), [&](const DataField& line, int64_t row) {
    const size_t before = items.size();
    read(line, items);
    for (size_t i = before; i < items.size(); ++i) {
      if (items[i].place.empty()) items[i].place = line.place();
      const bool is_line = items[i].source.is_null();  // otherwise one of the rows that lm-eval makes of a line
      if (is_line) items[i].source = {{"row", row}};
      const ChoiceItem& item = items[i];
      file.rows.push_back(hash_of_row(is_line ? line.value() : Json{item.source, item.context, item.choices, item.gold, item.fields}));
    }
  });
  if (items.empty()) throw Error(data_file(options, name) + ": there are no documents in this file");
  return file;
}

// One of `labels` by its name, or by its index as in the published files.
int64_t read_label(const DataField& field, std::span<const std::string_view> labels) {
  if (field.value().is_number_integer()) return field.integer(0, std::ssize(labels) - 1);
  const auto found = std::ranges::find(labels, field.text());
  if (found != labels.end()) return found - labels.begin();
  std::string known;
  for (const std::string_view label : labels) known += (known.empty() ? "" : ", ") + std::string(label);
  field.refuse("one of " + known);
}

std::unique_ptr<EvalTask> accuracy_task(const EvalTaskOptions& options, const SuperGlueSplits& splits, const SuperGlueReader& read) {
  SuperGlueData data = read_superglue(options, splits, read);
  return std::make_unique<FewShotChoiceTask>(std::move(data.items), std::vector<std::string>{"acc"}, std::move(data.pool));
}

void read_boolq(const DataField& line, std::vector<ChoiceItem>& items) {
  items.push_back({.context = line.text("passage") + "\nQuestion: " + line.text("question") + "?\nAnswer:",
                   .choices = {"no", "yes"},
                   .gold = line.at("label").truth() ? 1 : 0});
}

void read_cb(const DataField& line, std::vector<ChoiceItem>& items) {
  static constexpr std::array<std::string_view, 3> kLabels{"entailment", "contradiction", "neutral"};
  items.push_back({.context = line.text("premise") + "\nQuestion: " + line.text("hypothesis") + ". True, False, or Neither?\nAnswer:",
                   .choices = {"True", "False", "Neither"},
                   .gold = read_label(line.at("label"), kLabels)});
}

// With the macro F1 over the three labels beside the accuracy. A document's "f1" is [gold, predicted], of which the aggregate makes the F1.
class CbTask : public FewShotChoiceTask {
 public:
  using FewShotChoiceTask::FewShotChoiceTask;

  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    Json measured = FewShotChoiceTask::measure(document, answers);
    std::vector<double> scores;
    for (const EvalAnswer& answer : answers) scores.push_back(answer.log_likelihood);
    measured["f1"] = {document.gold, first_largest(scores)};
    return measured;
  }

  EvalFigures aggregate(std::span<const EvalDocument> documents, std::span<const Json> measured) const override {
    EvalFigures figures = FewShotChoiceTask::aggregate(documents, measured);
    std::vector<GoldAndPrediction> pairs;
    for (const Json& document : measured) pairs.push_back(document.at("f1").get<GoldAndPrediction>());
    figures.metrics["f1"] = {macro_f1(pairs, 3), {}};
    return figures;
  }
};

std::unique_ptr<EvalTask> make_cb(const EvalTaskOptions& options) {
  SuperGlueData data = read_superglue(options, {"superglue/CB/val.jsonl", "superglue/CB/train.jsonl"}, read_cb);
  return std::make_unique<CbTask>(std::move(data.items), std::vector<std::string>{"acc"}, std::move(data.pool));
}

// The choice in lower case at its beginning. It follows the delimiter after a space of its own, which makes two.
std::string copa_choice(const DataField& line, const std::string& key) {
  const std::string& choice = line.text(key);
  if (choice.empty()) line.at(key).refuse("text");
  const std::string_view first = python_slice(choice, 0, 1);
  return " " + python_lower(first) + choice.substr(first.size());
}

void read_copa(const DataField& line, std::vector<ChoiceItem>& items) {
  static constexpr std::array<std::string_view, 2> kQuestions{"cause", "effect"};
  const std::string_view premise = python_strip(line.text("premise"));
  const std::string_view without_period = python_slice(premise, 0, std::max<int64_t>(count_characters(premise) - 1, 0));
  const bool cause = read_label(line.at("question"), kQuestions) == 0;
  items.push_back({.context = std::string(without_period) + (cause ? " because" : " therefore"),
                   .choices = {copa_choice(line, "choice1"), copa_choice(line, "choice2")},
                   .gold = line.index("label", 2)});
}

void read_rte(const DataField& line, std::vector<ChoiceItem>& items) {
  static constexpr std::array<std::string_view, 2> kLabels{"entailment", "not_entailment"};
  items.push_back({.context = line.text("premise") + "\nQuestion: " + line.text("hypothesis") + " True or False?\nAnswer:",
                   .choices = {"True", "False"},
                   .gold = read_label(line.at("label"), kLabels)});
}

void read_wic(const DataField& line, std::vector<ChoiceItem>& items) {
  const std::string& sentence = line.text("sentence1");
  const int64_t characters = count_characters(sentence);
  const int64_t start = line.integer("start1", 0, characters);
  const std::string word(python_slice(sentence, start, line.integer("end1", start, characters)));
  items.push_back({.context = "Sentence 1: " + sentence + "\nSentence 2: " + line.text("sentence2") + "\nQuestion: Is the word '" + word +
                              "' used in the same way in the two sentences above?\nAnswer:",
                   .choices = {"no", "yes"},
                   .gold = line.at("label").truth() ? 1 : 0});
}

}  // namespace

SuperGlueData read_superglue(const EvalTaskOptions& options, const SuperGlueSplits& splits, const SuperGlueReader& read) {
  SuperGlueFile evaluated = read_superglue_file(options, splits.evaluated, read);
  SuperGlueData data;
  data.pool.shots = options.shots;
  data.pool.seed = options.seed;
  if (options.shots > 0) {
    const SuperGlueFile pool = splits.pool == splits.evaluated ? evaluated : read_superglue_file(options, splits.pool, read);
    for (const ChoiceItem& item : pool.items) data.pool.texts.push_back(few_shot_text(item));
    data.pool.rows = pool.rows;
    data.pool.documents = std::move(evaluated.rows);
  }
  data.items = std::move(evaluated.items);
  return data;
}

std::string_view python_slice(std::string_view text, int64_t first, int64_t last) {
  BASED_ASSERT(first >= 0 && last >= first);
  size_t begin = text.size(), at = 0;
  for (int64_t character = 0; at < text.size() && character < last; ++character) {
    if (character == first) begin = at;
    at += static_cast<size_t>(utf8_at(text.data() + at, text.data() + text.size()).size);
  }
  return begin < at ? text.substr(begin, at - begin) : std::string_view{};
}

// Examples come from the evaluated split: the data sets have no training split of BoolQ.
EvalTaskKind eval_task_boolq() {
  return {.name = "boolq",
          .summary = "yes/no questions about a Wikipedia passage (superglue/BoolQ)",
          .headline = "acc",
          .chance = 0.5,
          .few_shot = true,
          .published_examples = false,
          .version = "2.0",
          .make = [](const EvalTaskOptions& options) {
            return accuracy_task(options, {"superglue/BoolQ/val.jsonl", "superglue/BoolQ/val.jsonl"}, read_boolq);
          }};
}

EvalTaskKind eval_task_cb() {
  return {.name = "cb",
          .summary = "CommitmentBank: whether a premise entails, contradicts or leaves open a hypothesis (superglue/CB)",
          .headline = "acc",
          .chance = 1.0 / 3,
          .few_shot = true,
          .version = "1.0",
          .make = make_cb};
}

EvalTaskKind eval_task_copa() {
  return {.name = "copa",
          .summary = "the cause or effect of a premise, of two (superglue/COPA)",
          .headline = "acc",
          .chance = 0.5,
          .few_shot = true,
          .version = "1.0",
          .make = [](const EvalTaskOptions& options) {
            return accuracy_task(options, {"superglue/COPA/val.jsonl", "superglue/COPA/train.jsonl"}, read_copa);
          }};
}

EvalTaskKind eval_task_rte() {
  return {.name = "rte",
          .summary = "whether a premise entails a hypothesis (superglue/RTE; sglue_rte of lm-eval)",
          .headline = "acc",
          .chance = 0.5,
          .few_shot = true,
          .version = "0.0",
          .make = [](const EvalTaskOptions& options) {
            return accuracy_task(options, {"superglue/RTE/val.jsonl", "superglue/RTE/train.jsonl"}, read_rte);
          }};
}

EvalTaskKind eval_task_wic() {
  return {.name = "wic",
          .summary = "whether a word has the same sense in two sentences (superglue/WiC)",
          .headline = "acc",
          .chance = 0.5,
          .few_shot = true,
          .version = "1.0",
          .make = [](const EvalTaskOptions& options) {
            return accuracy_task(options, {"superglue/WiC/val.jsonl", "superglue/WiC/train.jsonl"}, read_wic);
          }};
}

}  // namespace based
