// The prompts, few-shot contexts and metrics of SuperGLUE's tasks on documents of our own.
#include "based/eval/tasks/superglue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "based/core/files.h"
#include "based/eval/eval_run.h"
#include "based/eval/tasks/python_text.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace superglue_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SuperGlue : public testing::Test {
 protected:
  // Writes a data file: "CB/val.jsonl".
  void write(const std::string& name, const std::string& lines) {
    const std::filesystem::path path = folder_.path() / "superglue" / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << lines;
  }
  std::unique_ptr<EvalTask> make(const EvalTaskKind& kind, int64_t shots = 0, int64_t seed = 1234) const {
    return kind.make({.data = folder_.path().string(), .shots = shots, .seed = seed});
  }
  EvalDocument document(const EvalTaskKind& kind, int64_t index = 0) const { return make(kind)->documents(index, 1).at(0); }
  std::string folder() const { return folder_.path().string(); }
  std::string error(const EvalTaskKind& kind) const {
    return message_of<Error>([&] { make(kind); });
  }

 private:
  TemporaryFolder folder_;
};

std::vector<std::string> continuations(const EvalDocument& document) {
  std::vector<std::string> texts;
  for (const EvalRequest& request : document.requests) texts.push_back(request.continuation);
  return texts;
}

// The answers of a model that prefers the choice `best`.
std::vector<EvalAnswer> prefer(const EvalDocument& document, size_t best) {
  std::vector<EvalAnswer> answers(document.requests.size(), EvalAnswer{.log_likelihood = -9});
  answers.at(best).log_likelihood = -1;
  return answers;
}

TEST_F(SuperGlue, BoolqTakesExamplesFromTheEvaluatedSplit) {
  write("BoolQ/val.jsonl", R"({"passage": "Tea is hot.", "question": "is tea hot", "label": true}
{"passage": "Ice is cold.", "question": "is ice hot", "label": false}
)");
  const EvalDocument plain = document(eval_task_boolq(), 1);
  EXPECT_THAT(plain.contexts, ElementsAre("Ice is cold.\nQuestion: is ice hot?\nAnswer:"));
  EXPECT_THAT(continuations(plain), ElementsAre(" no", " yes"));
  EXPECT_EQ(plain.gold, 0);
  EXPECT_EQ(plain.source, Json({{"row", 1}}));
  EXPECT_THAT(plain.place, HasSubstr("BoolQ/val.jsonl:2"));

  const std::unique_ptr<EvalTask> task = make(eval_task_boolq(), 1);
  const EvalDocument shot = task->documents(1, 1).at(0);
  EXPECT_THAT(shot.few_shot, ElementsAre(0));
  EXPECT_EQ(shot.contexts.at(0), "Tea is hot.\nQuestion: is tea hot?\nAnswer: yes\n\n" + plain.contexts[0]);
  EXPECT_THAT(task->documents(0, 2).at(1).contexts, shot.contexts) << "a document does not depend on the first one asked for";
  EXPECT_THAT(message_of<UsageError>([&] { make(eval_task_boolq(), 2); }), HasSubstr("--shots"));
}

TEST_F(SuperGlue, LabelsMayBeThoseOfThePublishedFiles) {
  write("BoolQ/val.jsonl", R"({"passage": "Tea is hot.", "question": "is tea hot", "label": 1}
{"passage": "Ice is cold.", "question": "is ice hot", "label": 2}
)");
  EXPECT_THAT(error(eval_task_boolq()), HasSubstr("val.jsonl:2: 'label' must be an integer from 0 to 1"));
  write("CB/val.jsonl", R"({"premise": "P", "hypothesis": "h", "label": 2})"
                        "\n");
  EXPECT_EQ(document(eval_task_cb()).gold, 2);
}

// CB's examples come from the training split, which repeats the document here.
TEST_F(SuperGlue, ADocumentInTheTrainingSplitIsNotItsOwnExample) {
  const std::string line = R"({"premise": "P", "hypothesis": "h", "label": "neutral"})"
                           "\n";
  write("CB/val.jsonl", line);
  write("CB/train.jsonl", line + line +
                              R"({"premise": "Other", "hypothesis": "h", "label": "neutral"})"
                              "\n");
  for (int64_t seed = 0; seed < 8; ++seed) EXPECT_THAT(make(eval_task_cb(), 1, seed)->documents(0, 1).at(0).few_shot, ElementsAre(2));
}

TEST_F(SuperGlue, FiguresWithOtherExamplesOrDocumentsAreNotComparable) {
  const auto boolq = [](int i) {
    return R"({"passage": "Tea is hot.", "question": "is tea hot", "label": true, "idx": )" + std::to_string(i) + "}\n";
  };
  write("BoolQ/val.jsonl", boolq(0) + boolq(1));
  const auto copa = [](int i) {
    return R"({"premise": "She ran.", "choice1": "A", "choice2": "B", "question": "cause", "label": 1, "idx": )" + std::to_string(i) +
           "}\n";
  };
  write("COPA/val.jsonl", copa(0));
  write("COPA/train.jsonl", copa(1) + copa(2));
  const auto comparable = [&](const std::string& task, int64_t shots) {
    return prepare_eval({.tasks = {task}, .data = folder(), .shots = shots, .out = ""}, ByteTokenizer()).at(0).kind.comparable;
  };
  EXPECT_TRUE(comparable("boolq", 0));
  EXPECT_FALSE(comparable("boolq", 1));
  EXPECT_TRUE(comparable("copa", 1));
  EXPECT_FALSE(eval_task_record_v1().comparable);
}

TEST_F(SuperGlue, TheSeedDrawsTheExamples) {
  std::string lines;
  for (int i = 0; i < 250; ++i)
    lines += R"({"passage": "Tea is hot.", "question": "is tea hot", "label": true, "idx": )" + std::to_string(i) + "}\n";
  write("BoolQ/val.jsonl", lines);
  const auto first_examples = [&](int64_t seed) {
    std::vector<int64_t> indices;
    for (const EvalDocument& document : make(eval_task_boolq(), 1, seed)->documents(0, 2)) indices.push_back(document.few_shot.at(0));
    return indices;
  };
  EXPECT_THAT(first_examples(1234), ElementsAre(247, 112));
  EXPECT_THAT(first_examples(7), ElementsAre(82, 38));  // random.Random(7)
}

TEST_F(SuperGlue, CbHasTheMacroF1) {
  write("CB/val.jsonl", R"({"premise": "It rains.", "hypothesis": "it is wet", "label": "entailment"}
{"premise": "It rains.", "hypothesis": "it is dry", "label": "contradiction"}
{"premise": "It rains.", "hypothesis": "it is May", "label": "neutral"}
)");
  const std::unique_ptr<EvalTask> task = make(eval_task_cb());
  const std::vector<EvalDocument> documents = task->documents(0, 3);
  EXPECT_EQ(documents[1].contexts.at(0), "It rains.\nQuestion: it is dry. True, False, or Neither?\nAnswer:");
  EXPECT_THAT(continuations(documents[1]), ElementsAre(" True", " False", " Neither"));
  EXPECT_EQ(documents[2].gold, 2);
  std::vector<Json> measured;
  for (const EvalDocument& document : documents) measured.push_back(task->measure(document, prefer(document, document.index == 0 ? 0 : 1)));
  EXPECT_EQ(measured[2].at("f1"), Json({2, 1}));
  const EvalFigures figures = task->aggregate(documents, measured);
  EXPECT_DOUBLE_EQ(figures.metrics.at("acc").value, 2.0 / 3);
  EXPECT_DOUBLE_EQ(figures.metrics.at("f1").value, (1 + 2.0 / 3 + 0) / 3) << "entailment 1, contradiction 2/3, neutral 0";
  EXPECT_FALSE(figures.metrics.at("f1").standard_error.has_value());
}

TEST_F(SuperGlue, CopaHasTwoSpacesBeforeAChoice) {
  write("COPA/val.jsonl",
        R"({"premise": " She ran. ", "choice1": "Émile called.", "choice2": "It was late.", "question": "cause", "label": 1}
{"premise": "No period", "choice1": "A", "choice2": "B", "question": "effect", "label": 0}
)");
  const EvalDocument cause = document(eval_task_copa());
  EXPECT_THAT(cause.contexts, ElementsAre("She ran because"));
  EXPECT_THAT(continuations(cause), ElementsAre("  émile called.", "  it was late."));
  EXPECT_EQ(cause.gold, 1);
  EXPECT_THAT(document(eval_task_copa(), 1).contexts, ElementsAre("No perio therefore"));
}

TEST_F(SuperGlue, RteAndWic) {
  write("RTE/val.jsonl", R"({"premise": "A dog barks.", "hypothesis": "A cat barks.", "label": "not_entailment"})");
  EXPECT_THAT(document(eval_task_rte()).contexts, ElementsAre("A dog barks.\nQuestion: A cat barks. True or False?\nAnswer:"));
  EXPECT_EQ(document(eval_task_rte()).gold, 1);
  // The offsets count characters: é has two bytes.
  write("WiC/val.jsonl", R"({"sentence1": "Dé épée bank.", "sentence2": "A bank.", "start1": 8, "end1": 12, "label": true})");
  EXPECT_THAT(document(eval_task_wic()).contexts,
              ElementsAre("Sentence 1: Dé épée bank.\nSentence 2: A bank.\nQuestion: Is the word 'bank' used in the same way in the two "
                          "sentences above?\nAnswer:"));
}

TEST_F(SuperGlue, WscMarksThePronounAndCorrectsSpans) {
  write("WSC/val.jsonl", R"({"text": "The ice broke before the children left , so they couldn't cross it .", "label": true,)"
                         R"( "target": {"span1_index": 4, "span1_text": "The children.", "span2_index": 9, "span2_text": "they"}})"
                         "\n"
                         R"({"text": "Tom  met Al , who 's tall .", "label": false,)"
                         R"( "target": {"span1_index": 0, "span1_text": "Tom", "span2_index": 4, "span2_text": "who"}})");
  EXPECT_THAT(document(eval_task_wsc()).contexts,
              ElementsAre("Passage: The ice broke before the children left, so *they* couldn't cross it.\nQuestion: In the passage above, "
                          "does the pronoun \"*they*\" refer to \"*the children*\"?\nAnswer:"));
  // The second space of the passage shifts the rest by one character, as in lm-eval.
  EXPECT_THAT(document(eval_task_wsc(), 1).contexts.at(0), HasSubstr("Passage: Tom met Al, *who*o's tall.\n"));
}

// An answer is part of a Python literal in lm-eval: \t is a tab, and a final backslash escapes the one of the line break that follows it.
TEST_F(SuperGlue, MultircChoicesArePythonLiterals) {
  write("MultiRC/val.jsonl", R"({"idx": 7, "passage": {"text": "P.", "questions": [{"question": "Q?", "idx": 3, "answers": [)"
                             R"({"text": "tab\\t \\d 'x'", "idx": 0, "label": 1}, {"text": "\\", "idx": 1, "label": 0},)"
                             R"( {"text": "\\x41\\u00e9\\101\r", "idx": 2, "label": 0},)"
                             R"( {"text": "a\\\r\nb\\\rc\\\nd", "idx": 3, "label": "1"}]}]}})");
  const EvalDocument tab = document(eval_task_multirc());
  EXPECT_THAT(tab.contexts, ElementsAre("P.\nQuestion: Q?\nAnswer:"));
  EXPECT_THAT(continuations(tab), ElementsAre(" tab\t \\d 'x'\nIs the answer correct? yes", " tab\t \\d 'x'\nIs the answer correct? no"));
  EXPECT_EQ(tab.gold, 1) << "the index of \"no\": lm-eval takes the label for it";
  EXPECT_EQ(tab.source, Json({{"paragraph", 7}, {"question", 3}, {"answer", 0}}));
  EXPECT_EQ(continuations(document(eval_task_multirc(), 1)).at(0), " \\nIs the answer correct? yes");
  EXPECT_EQ(continuations(document(eval_task_multirc(), 2)).at(1), " AéA\n\nIs the answer correct? no");
  EXPECT_EQ(continuations(document(eval_task_multirc(), 3)).at(1), " abcd\nIs the answer correct? no") << "a backslash joins lines";
  EXPECT_EQ(document(eval_task_multirc(), 3).gold, 1);
}

// Questions 0 and 1 of paragraph 0, and question 0 of paragraph 1. The standard error takes the two questions 0 for one.
TEST_F(SuperGlue, MultircCountsQuestionsWithAllAnswersRight) {
  write("MultiRC/val.jsonl", R"({"idx": 0, "passage": {"text": "P.", "questions": [{"question": "Q?", "idx": 0, "answers": [)"
                             R"({"text": "a", "idx": 0, "label": 1}, {"text": "b", "idx": 1, "label": 0}]},)"
                             R"( {"question": "R?", "idx": 1, "answers": [{"text": "c", "idx": 2, "label": 1}]}]}})"
                             "\n"
                             R"({"idx": 1, "passage": {"text": "S.", "questions": [{"question": "T?", "idx": 0, "answers": [)"
                             R"({"text": "d", "idx": 3, "label": 0}]}]}})");
  const std::unique_ptr<EvalTask> task = make(eval_task_multirc());
  const std::vector<EvalDocument> documents = task->documents(0, task->size());
  ASSERT_EQ(documents.size(), 4u);
  const std::vector<size_t> choices{1, 0, 0, 0};  // only the third is wrong
  std::vector<Json> measured;
  for (size_t i = 0; i < documents.size(); ++i) measured.push_back(task->measure(documents[i], prefer(documents[i], choices[i])));
  const EvalFigures figures = task->aggregate(documents, measured);
  EXPECT_DOUBLE_EQ(figures.metrics.at("acc").value, 0.75);
  EXPECT_DOUBLE_EQ(figures.further.at("acc_all").value, 2.0 / 3);
  EXPECT_DOUBLE_EQ(figures.further.at("acc_all").standard_error.value(), 0.5);
}

constexpr const char* kRecordLine =
    R"({"idx": 5, "passage": {"text": "Ann met Bob Lee in Rome.\n@highlight\nAnn likes Rome\n@highlight\nBob left", "entities": [)"
    R"({"start": 19, "end": 22}, {"start": 0, "end": 2}, {"start": 8, "end": 14}, {"start": 36, "end": 38}, {"start": 62, "end": 64}]},)"
    R"( "qas": [{"query": "@placeholder came to Rome", "idx": 9, "answers": [{"text": "Bob Lee"}, {"text": "Bob Lee"}]}]})";

TEST_F(SuperGlue, RecordChoosesAnEntity) {
  write("ReCoRD/fewglue_dev32.jsonl", kRecordLine);
  const std::string other = replace_all(kRecordLine, "\"idx\": 5", "\"idx\": 6");  // the same passage as another row
  ASSERT_NE(other, kRecordLine);
  write("ReCoRD/fewglue_train.jsonl", other + "\n" + other);
  const EvalDocument statement = document(eval_task_record()), entity = document(eval_task_record_v1());
  EXPECT_THAT(statement.contexts, ElementsAre("Ann met Bob Lee in Rome.\n\n  - Ann likes Rome.\n  - Bob left.\n"));
  EXPECT_THAT(continuations(statement),
              ElementsAre("   - Ann came to Rome", "   - Bob came to Rome", "   - Bob Lee came to Rome", "   - Rome came to Rome"));
  EXPECT_THAT(continuations(entity), ElementsAre(" Ann", " Bob", " Bob Lee", " Rome"));
  EXPECT_EQ(statement.gold, 2);
  EXPECT_EQ(entity.gold, Json({"Bob Lee"}));
  EXPECT_EQ(entity.source, Json({{"passage", 5}, {"query", 9}}));
  const EvalDocument shot = make(eval_task_record_v1(), 1)->documents(0, 1).at(0);
  EXPECT_EQ(shot.contexts.at(0), entity.contexts.at(0) + " Bob Lee\n\n" + entity.contexts.at(0));

  const std::unique_ptr<EvalTask> task = make(eval_task_record());
  const Json part = task->measure(statement, prefer(statement, 1)), right = task->measure(statement, prefer(statement, 2));
  EXPECT_DOUBLE_EQ(part.at("f1").get<double>(), 2.0 / 3) << "one of two words";
  EXPECT_EQ(part.at("em"), 0);
  EXPECT_EQ(right.at("f1"), 1);
  EXPECT_EQ(right.at("em"), 1);
}

TEST_F(SuperGlue, ErrorsNameFileLineAndField) {
  EXPECT_THAT(error(eval_task_cb()), HasSubstr("--data"));
  write("CB/val.jsonl", R"({"premise": "a", "hypothesis": "b", "label": "maybe"})");
  EXPECT_THAT(error(eval_task_cb()), HasSubstr("CB/val.jsonl:1: 'label' must be one of entailment, contradiction, neutral"));
  write("COPA/val.jsonl", R"({"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 2})");
  EXPECT_THAT(error(eval_task_copa()), HasSubstr("COPA/val.jsonl:1: 'label'"));
  write("COPA/val.jsonl", R"({"premise": "a", "choice1": "b", "choice2": "", "question": "cause", "label": 1})");
  EXPECT_THAT(error(eval_task_copa()), HasSubstr("'choice2'"));
  write("WiC/val.jsonl", R"({"sentence1": "é", "sentence2": "b", "start1": 0, "end1": 2, "label": true})");
  EXPECT_THAT(error(eval_task_wic()), HasSubstr("'end1'"));
  write("BoolQ/val.jsonl", R"({"passage": "a", "label": true})");
  EXPECT_THAT(error(eval_task_boolq()), HasSubstr("'question' is missing"));
  write("WSC/val.jsonl", R"({"text": "A b.", "label": true,)"
                         R"( "target": {"span1_index": 0, "span1_text": "c", "span2_index": 1, "span2_text": "b"}})");
  EXPECT_THAT(error(eval_task_wsc()), HasSubstr("WSC/val.jsonl:1: 'target.span1_text'"));
  write("MultiRC/val.jsonl", R"({"idx": 0, "passage": {"text": "P.", "questions": [{"question": "Q?", "idx": 0, "answers": [)"
                             R"({"text": "\\x4", "idx": 0, "label": 1}]}]}})");
  EXPECT_THAT(error(eval_task_multirc()), HasSubstr("'passage.questions[0].answers[0].text'"));
  write("MultiRC/val.jsonl", R"({"idx": 0, "passage": {"text": "P.", "questions": []}})");
  EXPECT_THAT(error(eval_task_multirc()), HasSubstr("MultiRC/val.jsonl: there are no documents"));
  write("ReCoRD/fewglue_dev32.jsonl", R"({"idx": 0, "passage": {"text": "Ann", "entities": [{"start": 0, "end": 3}]}, "qas": []})");
  EXPECT_THAT(error(eval_task_record()), HasSubstr("'passage.entities[0].end'"));
}

TEST(PythonSlice, CountsCharacters) {
  EXPECT_EQ(python_slice("aéb", 1, 2), "é");
  EXPECT_EQ(python_slice("aéb", 2, 9), "b");
  EXPECT_EQ(python_slice("aéb", 1, 1), "");
  EXPECT_EQ(python_slice("aéb", 3, 4), "");
}

// lm-eval's own inputs and outputs of single functions.
class SuperGlueCases : public SuperGlue {
 protected:
  static Json cases(const std::string& function) {
    const std::string path = test::golden("eval/cases/cases.json");
    return std::filesystem::exists(path) ? parse_json(read_file(path), path).at(function) : Json();
  }
};

TEST_F(SuperGlueCases, Copa) {
  const Json cases = this->cases("copa");
  if (cases.is_null()) GTEST_SKIP() << "needs eval/cases/cases.json";
  for (const Json& c : cases) {
    write("COPA/val.jsonl", c.dump());
    const EvalDocument document = this->document(eval_task_copa());
    Json requests = Json::array();
    for (const std::string& continuation : continuations(document)) requests.push_back({document.contexts.at(0), continuation});
    EXPECT_EQ(requests, c["requests"]);
  }
}

TEST_F(SuperGlueCases, Wsc) {
  const Json cases = this->cases("wsc");
  if (cases.is_null()) GTEST_SKIP() << "needs eval/cases/cases.json";
  for (const Json& c : cases) {
    Json line{{"text", c["text"]}, {"label", true}};
    for (const char* field : {"span1_text", "span1_index", "span2_text", "span2_index"}) line["target"][field] = c[field];
    write("WSC/val.jsonl", line.dump());
    EXPECT_EQ(document(eval_task_wsc()).contexts.at(0), c["context"].get<std::string>());
  }
}

TEST_F(SuperGlueCases, Multirc) {
  const Json cases = this->cases("multirc");
  if (cases.is_null()) GTEST_SKIP() << "needs eval/cases/cases.json";
  for (const Json& c : cases) {
    const Json answer{{"text", c["answer"]}, {"idx", 0}, {"label", c["label"]}};
    const Json question{{"question", "Q?"}, {"idx", 0}, {"answers", Json::array({answer})}};
    write("MultiRC/val.jsonl", Json{{"idx", 0}, {"passage", {{"text", "P. "}, {"questions", Json::array({question})}}}}.dump());
    const EvalDocument document = this->document(eval_task_multirc());
    EXPECT_EQ(document.contexts.at(0), c["context"].get<std::string>());
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(document.requests.at(i).continuation, " " + c["choices"][i].get<std::string>());
  }
}

TEST_F(SuperGlueCases, AccAll) {
  const Json cases = this->cases("acc_all");
  if (cases.is_null()) GTEST_SKIP() << "needs eval/cases/cases.json";
  write("MultiRC/val.jsonl", R"({"idx": 0, "passage": {"text": "P.", "questions": [{"question": "Q?", "idx": 0, "answers": [)"
                             R"({"text": "a", "idx": 0, "label": 1}]}]}})");
  const std::unique_ptr<EvalTask> task = make(eval_task_multirc());
  for (const Json& c : cases) {
    std::vector<EvalDocument> documents;
    std::vector<Json> measured;
    for (const Json& item : c["items"]) {
      EvalDocument& document = documents.emplace_back();
      document.source = {{"paragraph", item["paragraph"]}, {"question", item["question"]}};
      measured.push_back({{"acc", item["pred"].get<bool>() == (item["label"] == 1) ? 1.0 : 0.0}});
    }
    const EvalFigure figure = task->aggregate(documents, measured).further.at("acc_all");
    EXPECT_DOUBLE_EQ(figure.value, c["value"].get<double>());
    EXPECT_DOUBLE_EQ(figure.standard_error.value(), c["stderr"].get<double>());
  }
}

}  // namespace superglue_test
}  // namespace based
