// SuperGLUE's ReCoRD: the entity of a news passage that completes a statement about it.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"
#include "based/eval/tasks/superglue.h"

namespace based {

namespace {

enum class RecordVersion {
  entity,     // version 1, of the paper's harness: a choice is the entity alone
  statement,  // version 2: a choice is the statement with the entity
};

// The text before the highlights, an empty line, then one line for each highlight.
std::string record_context(const std::string& passage) {
  static constexpr std::string_view kMark = "\n@highlight\n";
  std::string_view rest = python_strip(passage);
  size_t end = rest.find(kMark);
  std::string context = std::string(rest.substr(0, end)) + "\n\n";
  while (end != std::string_view::npos) {
    rest.remove_prefix(end + kMark.size());
    end = rest.find(kMark);
    context += "  - " + std::string(rest.substr(0, end)) + ".\n";
  }
  return context;
}

std::set<std::string> record_entities(const DataField& passage) {
  const std::string& text = passage.text("text");
  const int64_t characters = count_characters(text);
  std::set<std::string> entities;
  for (const DataField& entity : passage.at("entities").items()) {
    const int64_t start = entity.integer("start", 0, characters - 1);
    entities.emplace(python_slice(text, start, entity.integer("end", start, characters - 1) + 1));  // `end` is the last character
  }
  return entities;
}

void read_record(RecordVersion version, const DataField& line, std::vector<ChoiceItem>& items) {
  const DataField passage = line.at("passage");
  const std::string context = record_context(passage.text("text"));
  const std::set<std::string> entities = record_entities(passage);
  for (const DataField& query : line.at("qas").items()) {
    std::set<std::string> answers;
    for (const DataField& answer : query.at("answers").items()) answers.insert(answer.text("text"));
    if (answers.empty() || !entities.contains(*answers.begin())) query.at("answers").refuse("entities of the passage");
    ChoiceItem item{.source = {{"passage", line.integer("idx", 0, INT64_MAX)}, {"query", query.integer("idx", 0, INT64_MAX)}},
                    .context = context,
                    .gold = std::distance(entities.begin(), entities.find(*answers.begin())),
                    .fields = {{"entities", entities}, {"answers", answers}}};
    for (const std::string& entity : entities) {
      item.choices.push_back(version == RecordVersion::entity ? entity : replace_all("  - " + query.text("query"), "@placeholder", entity));
    }
    items.push_back(std::move(item));
  }
}

// f1 and em: the largest token F1 and exact match of the predicted entity with one of the answers, after SQuAD's normalisation.
class RecordTask : public FewShotChoiceTask {
 public:
  RecordTask(RecordVersion version, SuperGlueData data)
      : FewShotChoiceTask(std::move(data.items), {}, std::move(data.pool)), version_(version) {}

  EvalDocument document(int64_t index) const override {
    EvalDocument document = FewShotChoiceTask::document(index);
    if (version_ == RecordVersion::entity) document.gold = document.fields.at("answers");
    return document;
  }

  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    std::vector<double> scores;
    for (const EvalAnswer& answer : answers) scores.push_back(answer.log_likelihood);
    const auto prediction = document.fields.at("entities").at(first_largest(scores)).get<std::string>();
    double f1 = 0, exact = 0;
    for (const Json& gold : document.fields.at("answers")) {
      f1 = std::max(f1, squad_f1(prediction, gold.get<std::string>()));
      exact = std::max(exact, squad_exact(prediction, gold.get<std::string>()) ? 1.0 : 0.0);
    }
    return {{"f1", f1}, {"em", exact}};
  }

 private:
  RecordVersion version_;
};

EvalTaskKind record_kind(RecordVersion version) {
  const bool statement = version == RecordVersion::statement;
  return {.name = statement ? "record" : "record_v1",
          .summary = std::string("the entity of a news passage that completes a statement") +
                     (statement ? "" : "; the entity alone, as in the paper's column") + " (superglue/ReCoRD: 32 passages of FewGLUE)",
          .headline = "f1",
          .few_shot = true,
          .comparable = false,
          .version = statement ? "2.0" : "1.0",
          .make = [version](const EvalTaskOptions& options) -> std::unique_ptr<EvalTask> {
            const auto read = [version](const DataField& line, std::vector<ChoiceItem>& items) { read_record(version, line, items); };
            const SuperGlueSplits splits{"superglue/ReCoRD/fewglue_dev32.jsonl", "superglue/ReCoRD/fewglue_train.jsonl"};
            return std::make_unique<RecordTask>(version, read_superglue(options, splits, read));
          }};
}

}  // namespace

EvalTaskKind eval_task_record() { return record_kind(RecordVersion::statement); }
EvalTaskKind eval_task_record_v1() { return record_kind(RecordVersion::entity); }

}  // namespace based
