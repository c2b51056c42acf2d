// Users' own tasks from TOML files.
#include "based/eval/tasks/custom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace custom_task_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CustomTask : public testing::Test {
 protected:
  EvalTaskKind kind(const std::string& toml) const {
    write_file_atomic(toml_, toml);
    return find_eval_task(toml_);
  }
  std::unique_ptr<EvalTask> make(const std::string& toml, const std::string& data) const {
    write_file_atomic(data_, data);
    return kind(toml).make({});
  }
  std::string usage_fault(const std::string& toml) const {
    return message_of<UsageError>([&] { kind(toml); });
  }
  std::string data_fault(const std::string& toml, const std::string& data) const {
    return message_of<Error>([&] { make(toml, data); });
  }

  const TemporaryFolder folder_;
  const std::string toml_ = folder_.file("capitals.toml"), data_ = folder_.file("set.jsonl");
  const std::string choices_ = R"(data = "set.jsonl"
context = "Question: {question}\nAnswer:"
choices_field = "options"
gold = "label"
metric = "acc_norm"
chance = 0.25
)";
};

TEST_F(CustomTask, ReadsChoicesFromAList) {
  const std::unique_ptr<EvalTask> task = make(choices_, R"({"question": "Capital of Peru?", "options": ["Lima", "Quito"], "label": 0}
{"question": "Of {it}?", "options": ["Rome", "Bern"], "label": "Bern"})");
  const std::vector<EvalDocument> documents = task->documents(0, 2);
  EXPECT_THAT(documents[0].contexts, ElementsAre("Question: Capital of Peru?\nAnswer:"));
  EXPECT_EQ(documents[0].requests[1].continuation, " Quito");
  EXPECT_EQ(documents[0].gold, 0);
  EXPECT_THAT(documents[1].contexts, ElementsAre("Question: Of {it}?\nAnswer:"));
  EXPECT_EQ(documents[1].gold, 1);
  EXPECT_EQ(kind(choices_).name, "capitals");
  EXPECT_EQ(kind(choices_).headline, "acc_norm");
  EXPECT_EQ(kind(choices_).chance, 0.25);
}

TEST_F(CustomTask, FillsFixedChoices) {
  const std::unique_ptr<EvalTask> task = make(R"(name = "winner"
data = "set.jsonl"
context = "{{{match.home}:{match.away}}} {goals}"
choices = ["{match.home} wins", "{match.away} wins"]
gold = "answer"
labels = ["1", "2"]
delimiter = "|"
)",
                                              R"({"match": {"home": "A", "away": "B"}, "goals": 3, "answer": 2})");
  const EvalDocument document = task->documents(0, 1).at(0);
  EXPECT_THAT(document.contexts, ElementsAre("{A:B} 3"));
  EXPECT_EQ(document.requests[1].continuation, "|B wins");
  EXPECT_EQ(document.gold, 1);
}

TEST_F(CustomTask, TakesTruthValuesAndFractions) {
  const std::string toml = "data = \"set.jsonl\"\ncontext = \"{x}:\"\nchoices = [\"no\", \"yes\"]\ngold = \"right\"\n";
  const std::string data = "{\"x\": 0.5, \"right\": true}\n{\"x\": false, \"right\": false}\n";
  const std::vector<EvalDocument> documents = make(toml, data)->documents(0, 2);
  EXPECT_THAT(documents[0].contexts, ElementsAre("0.5:"));
  EXPECT_EQ(documents[0].gold, 1);
  EXPECT_THAT(documents[1].contexts, ElementsAre("false:"));
  EXPECT_EQ(documents[1].gold, 0);
  EXPECT_EQ(make(toml + "labels = [\"true\", \"false\"]\n", data)->documents(0, 1).at(0).gold, 0);
}

TEST_F(CustomTask, RefusesKeysWithoutAnEffect) {
  EXPECT_THAT(usage_fault(choices_ + "until = [\"x\"]\n"), HasSubstr("'until' has no effect"));
  EXPECT_THAT(usage_fault(choices_ + "max_tokens = 3\n"), HasSubstr("'max_tokens' has no effect"));
  const std::string generated = "data = \"set.jsonl\"\ncontext = \"{q}\"\ngold = \"a\"\nmetric = \"exact\"\n";
  EXPECT_THAT(usage_fault(generated + "delimiter = \"|\"\n"), HasSubstr("'delimiter' has no effect"));
}

TEST_F(CustomTask, ScoresACompletion) {
  const std::string toml = "data = \"set.jsonl\"\ncontext = \"{q}\"\ngold = \"a\"\nmetric = \"perplexity\"\n";
  const std::unique_ptr<EvalTask> task = make(toml, R"({"q": "two and two are", "a": "four"})");
  const EvalDocument document = task->documents(0, 1).at(0);
  EXPECT_EQ(document.requests[0].kind, EvalRequest::Kind::score);
  EXPECT_EQ(document.requests[0].continuation, " four");
  EXPECT_EQ(task->measure(document, std::vector<EvalAnswer>{{.log_likelihood = -2, .greedy = true}})["perplexity"], -2);
}

TEST_F(CustomTask, ComparesGeneratedText) {
  const std::string toml =
      "data = \"set.jsonl\"\ncontext = \"{q}\"\ngold = \"a\"\nmetric = \"contains\"\nuntil = [\"\\n\", \".\"]\nmax_tokens = 7\n";
  const std::unique_ptr<EvalTask> task = make(toml, R"({"q": "two and two are", "a": "four"})");
  const EvalDocument document = task->documents(0, 1).at(0);
  EXPECT_EQ(document.requests[0].kind, EvalRequest::Kind::generate);
  EXPECT_THAT(document.requests[0].until, ElementsAre("\n", "."));
  EXPECT_EQ(document.requests[0].max_tokens, 7);
  const Json measured = task->measure(document, std::vector<EvalAnswer>{{.text = " Four, I think"}});
  EXPECT_EQ(measured["contains"], 1);
  EXPECT_EQ(measured["exact"], 0);
  EXPECT_DOUBLE_EQ(measured["f1"].get<double>(), 0.5);
}

TEST_F(CustomTask, NamesTheKey) {
  EXPECT_EQ(usage_fault("data = \"set.jsonl\"\ncontext = \"a\"\n"), toml_ + ": the key 'gold' is missing");
  EXPECT_THAT(usage_fault(choices_ + "metrics = 1\n"), HasSubstr(toml_ + ":7: "));
  const auto with = [](const std::string& context) { return "data = \"set.jsonl\"\ngold = \"a\"\ncontext = \"" + context + "\"\n"; };
  EXPECT_EQ(usage_fault(with("a {b")), toml_ + ":3: 'context' has '{' without '}'; a brace in the text is written {{");
  EXPECT_EQ(usage_fault(with("a } b")), toml_ + ":3: 'context' has '}' without '{'; a brace in the text is written }}");
  EXPECT_EQ(usage_fault(with("a {} b")), toml_ + ":3: 'context' has '{}' without the name of a field");
  EXPECT_EQ(usage_fault(with("a") + "metric = \"acc_norm\"\n"),
            toml_ + ":4: 'metric' must be one of acc, perplexity, contains, exact, f1 for a task without choices");
  EXPECT_EQ(usage_fault(with("a") + "choices = [\"a\"]\n"), toml_ + ":4: 'choices' needs at least two choices");
  EXPECT_THAT(usage_fault(with("a") + "choices = 3\n"), HasSubstr(toml_ + ":4: 'choices' must be a list"));
  EXPECT_EQ(usage_fault(choices_ + "choices = [\"a\", \"b\"]\n"), toml_ + ":3: 'choices_field' must be left out beside 'choices'");
  EXPECT_EQ(usage_fault(with("a") + "choices = [\"a\", \"b\"]\nlabels = [\"x\"]\n"),
            toml_ + ":5: 'labels' needs one label for each of the 2 choices");
  EXPECT_EQ(usage_fault(with("a") + "name = \"piqa\"\n"), toml_ + ":4: 'name' is the name of a known task; give another one");
}

TEST_F(CustomTask, NamesTheLineAndTheKeyThatRefersToIt) {
  EXPECT_EQ(data_fault(choices_, R"({"question": "?", "options": ["a", "b"], "label": 0}
{"options": ["a", "b"], "label": 0})"),
            data_ + ":2: 'question' is missing; " + toml_ + ":2: 'context' refers to it");
  EXPECT_EQ(data_fault(choices_, R"({"question": ["?"], "options": ["a", "b"], "label": 0})"),
            data_ + R"(:1: 'question' must be a string, a number, true or false, is ["?"]; )" + toml_ + ":2: 'context' refers to it");
  EXPECT_EQ(data_fault(choices_, R"({"question": "?", "options": "a", "label": 0})"),
            data_ + R"(:1: 'options' must be a list, is "a"; )" + toml_ + ":3: 'choices_field' refers to it");
  EXPECT_EQ(data_fault(choices_, R"({"question": "?", "options": ["a", "b"], "label": 2})"),
            data_ + ":1: 'label' must be an integer from 0 to 1, is 2; " + toml_ + ":4: 'gold' refers to it");
  EXPECT_EQ(data_fault(choices_, R"({"question": "?", "options": ["a", "b"], "label": "c"})"),
            data_ + R"(:1: 'label' must be the index or the text of a choice, is "c"; )" + toml_ + ":4: 'gold' refers to it");
  EXPECT_EQ(data_fault(choices_, ""), data_ + ": there are no documents in this file");
}

}  // namespace custom_task_test
}  // namespace based
