// SQuAD completion: a passage, and a statement that lacks its end, which is the answer to a question about the passage.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "based/core/files.h"
#include "based/eval/tasks/contains.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

struct SquadQuestion {
  std::string id, title, question, place;
  std::vector<std::string> answers;
  std::shared_ptr<const std::string> passage;
};

// The questions of a file of SQuAD 1.1, in its order.
std::vector<SquadQuestion> read_squad(const std::string& path) {
  std::vector<SquadQuestion> questions;
  read_json_file(path, [&](const DataField& file) {
    for (const DataField& article : file.at("data").items()) {
      for (const DataField& paragraph : article.at("paragraphs").items()) {
        const auto passage = std::make_shared<const std::string>(paragraph.text("context"));
        for (const DataField& asked : paragraph.at("qas").items()) {
          SquadQuestion question;
          question.id = asked.text("id");
          question.title = article.text("title");
          question.question = asked.text("question");
          question.passage = passage;
          question.place = path + ": question " + question.id;
          for (const DataField& answer : asked.at("answers").items()) question.answers.push_back(answer.text("text"));
          if (question.answers.empty()) asked.at("answers").refuse("a list of at least one answer");
          questions.push_back(std::move(question));
        }
      }
    }
  });
  if (questions.empty()) throw Error(path + ": has no questions");
  return questions;
}

RecallPrompt squad_prompt(const SquadQuestion& question, const std::string& statement, const std::string& value) {
  return {.document = *question.passage,
          .ending = "\n" + statement,
          .value = value,
          .place = question.place,
          .source = {{"id", question.id}, {"title", question.title}}};
}

// The statement of a line of requests: the text after the passage in its only context.
std::string statement_of_request(const DataField& line, const std::string& passage) {
  const std::vector<DataField> contexts = line.at("contexts").items();
  if (contexts.size() != 1) line.at("contexts").refuse("a list of one context");
  if (!contexts.front().has("text")) contexts.front().refuse("a context with its text, from which the statement is read");
  const std::string& text = contexts.front().text("text");
  if (!text.starts_with(passage + "\n")) contexts.front().at("text").refuse("the question's passage, a line break and a statement");
  return text.substr(passage.size() + 1);
}

std::unique_ptr<EvalTask> read_squad_completion(const EvalTaskOptions& options) {
  const std::vector<SquadQuestion> questions = read_squad(data_file(options, "squad-v1.1/dev-v1.1.json"));
  std::unordered_map<std::string, const SquadQuestion*> by_id;
  for (const SquadQuestion& question : questions) by_id[question.id] = &question;

  std::string path = options.statements;
  if (path.empty()) {
    path = path_in(options.data, "squad-v1.1/statements.jsonl");
    if (!path_exists(path))
      throw UsageError(
          "squad_completion needs statements, which are written by hand from the questions: name their file with --statements, "
          "or put it at " +
          path + "; squad_rewritten makes statements by a rule");
  }
  std::vector<RecallPrompt> prompts;
  read_json_lines(path, [&](const DataField& line, int64_t) {
    const bool request = line.has("contexts");
    const DataField id = request ? line.at("source").at("id") : line.at("id");
    const auto found = by_id.find(id.text());
    if (found == by_id.end()) id.refuse("the id of a question of SQuAD 1.1");
    const SquadQuestion& question = *found->second;
    const std::string statement = request ? statement_of_request(line, *question.passage) : line.text("statement");
    prompts.push_back(squad_prompt(question, statement, line.text(request ? "gold" : "value")));
    prompts.back().place = line.place();
  });
  return make_recall_task(std::move(prompts), options.tokenizer);
}

// False for words after which a question's rest is no noun phrase: prepositions and participles, such as the last word of "… river
// called?".
bool ends_noun_phrase(std::string_view word) {
  static constexpr std::array<std::string_view, 44> no_ends{
      "about", "after", "against", "as",   "at",      "away", "been",  "before", "born",  "built",   "by",
      "do",    "does",  "done",    "down", "during",  "for",  "found", "from",   "given", "held",    "in",
      "into",  "known", "like",    "made", "of",      "off",  "on",    "out",    "over",  "put",     "sent",
      "spent", "taken", "than",    "that", "through", "to",   "under", "up",     "with",  "without", "written"};
  return !word.ends_with("ed") && !word.ends_with("ing") && std::find(no_ends.begin(), no_ends.end(), word) == no_ends.end();
}

// Turns a question into a statement without its end: "Who was the king of Spain?" gives "The king of Spain was". Returns nullopt for
// questions of another form.
std::optional<std::string> squad_statement(const std::string& question) {
  const std::vector<std::string_view> words = python_split(question);
  constexpr size_t least_words = 5;
  if (words.size() < least_words || !words.back().ends_with('?')) return std::nullopt;
  if (words[0] != "What" && words[0] != "Who" && words[0] != "Which") return std::nullopt;
  if (words[1] != "is" && words[1] != "was" && words[1] != "are" && words[1] != "were") return std::nullopt;
  if (words[2] != "the") return std::nullopt;
  std::string statement = "The";
  for (size_t i = 3; i < words.size(); ++i) statement.append(" ").append(words[i]);
  statement = std::string(python_rstrip(std::string_view(statement).substr(0, statement.size() - 1)));
  if (statement.find_first_of(",;:?") != std::string::npos) return std::nullopt;
  if (!ends_noun_phrase(python_split(statement).back())) return std::nullopt;
  return statement.append(" ").append(words[1]);
}

// The value is the shortest answer, which the other annotators' answers usually contain.
std::unique_ptr<EvalTask> read_squad_rewritten(const EvalTaskOptions& options) {
  const std::string path = data_file(options, "squad-v1.1/dev-v1.1.json");
  std::vector<RecallPrompt> prompts;
  for (const SquadQuestion& question : read_squad(path)) {
    const std::optional<std::string> statement = squad_statement(question.question);
    if (!statement) continue;
    const auto shortest = std::min_element(question.answers.begin(), question.answers.end(),
                                           [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
    prompts.push_back(squad_prompt(question, *statement, *shortest));
  }
  if (prompts.empty()) throw Error(path + ": has no questions of the form 'What is the …?'");
  return make_recall_task(std::move(prompts), options.tokenizer);
}

}  // namespace

EvalTaskKind eval_task_squad_completion() {
  return {.name = "squad_completion",
          .summary = "statements about passages of SQuAD 1.1, zero-shot; our own statements, read from a file",
          .headline = "contains",
          .comparable = false,
          .version = "1",
          .make = read_squad_completion};
}

EvalTaskKind eval_task_squad_rewritten() {
  return {.name = "squad_rewritten",
          .summary = "questions of SQuAD 1.1 of the form 'What is the …?' as statements, zero-shot; our own rule",
          .headline = "contains",
          .comparable = false,
          .make = read_squad_rewritten};
}

EvalTaskKind eval_task_squad_completion_published() {
  return published_recall_kind("squad_completion_published", "based-squad/validation.jsonl", "hazyresearch/based-squad");
}

}  // namespace based
