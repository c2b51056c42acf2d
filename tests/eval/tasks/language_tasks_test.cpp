// The requests of the language tasks, from small files of their formats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "based/core/files.h"
#include "based/eval/task.h"
#include "based/eval/tasks/hellaswag.h"
#include "based/eval/tasks/wikitext.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace language_tasks_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LanguageTasks : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(folder_.file(name)).parent_path());
    write_file_atomic(folder_.file(name), content);
  }
  std::unique_ptr<EvalTask> make(const std::string& task) const { return find_eval_task(task).make({.data = folder_.path().string()}); }
  EvalDocument first(const std::string& task) const { return make(task)->documents(0, 1).at(0); }
  std::string fault(const std::string& task) const {
    return message_of<Error>([&] { make(task); });
  }
  static std::vector<std::string> continuations(const EvalDocument& document) {
    std::vector<std::string> texts;
    for (const EvalRequest& request : document.requests) texts.push_back(request.continuation);
    return texts;
  }

  const TemporaryFolder folder_;
};

TEST_F(LanguageTasks, LambadaSplitsBeforeTheLastSpace) {
  write("lambada/lambada_test.jsonl", R"({"text": "She opened\nthe old door"}
{"text": "end "}
{"text": "word\nalone"})");
  const std::unique_ptr<EvalTask> task = make("lambada_openai");
  const std::vector<EvalDocument> documents = task->documents(0, 3);
  EXPECT_THAT(documents[0].contexts, ElementsAre("She opened\nthe old"));
  EXPECT_THAT(continuations(documents[0]), ElementsAre(" door"));
  EXPECT_EQ(documents[0].gold, " door");
  EXPECT_EQ(documents[0].source.dump(), R"({"row":0})");
  EXPECT_THAT(documents[1].contexts, ElementsAre("end"));
  EXPECT_THAT(continuations(documents[1]), ElementsAre(" "));
  EXPECT_THAT(documents[2].contexts, ElementsAre(""));
  EXPECT_THAT(continuations(documents[2]), ElementsAre(" word\nalone"));

  std::vector<Json> measured;
  for (const double log_likelihood : {-1.0, -2.0, -3.0})
    measured.push_back(
        task->measure(documents[0], std::vector<EvalAnswer>{{.log_likelihood = log_likelihood, .greedy = log_likelihood > -2}}));
  const EvalFigures figures = task->aggregate(documents, measured);
  EXPECT_DOUBLE_EQ(figures.metrics.at("perplexity").value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(figures.metrics.at("acc").value, 1.0 / 3);
  EXPECT_TRUE(figures.metrics.at("perplexity").standard_error.has_value());
}

TEST_F(LanguageTasks, HellaswagReadsTextFormAndPublishedForm) {
  write("hellaswag/hellaswag_val.jsonl", R"({"ctx": "Baking: Bread [step] rises. he", "endings": ["a", "b  c", "d", "e"], "label": 1}
{"activity_label": "Baking", "ctx_a": "Bread rises.", "ctx_b": "the baker Bo", "endings": ["a", "b [title] c", "[x] d", "e"], "label": 3})");
  const std::vector<EvalDocument> documents = make("hellaswag")->documents(0, 2);
  EXPECT_THAT(documents[0].contexts, ElementsAre("Baking: Bread [step] rises. he"));
  EXPECT_THAT(continuations(documents[0]), ElementsAre(" a", " b  c", " d", " e"));
  EXPECT_THAT(documents[1].contexts, ElementsAre("Baking: Bread rises. The baker bo"));
  EXPECT_THAT(continuations(documents[1]), ElementsAre(" a", " b. c", "  d", " e"));
  EXPECT_EQ(documents[1].gold, 3);
  EXPECT_EQ(hellaswag_preprocessed("[a]  [b]"), " ");
  EXPECT_EQ(hellaswag_preprocessed("[open [b] c]"), " c]");  // to the first "]"
}

TEST_F(LanguageTasks, PiqaNeedsALabelForEachLine) {
  write("piqa/valid.jsonl", R"({"goal": "cut bread", "sol1": "use a knife ", "sol2": "use a spoon"})");
  write("piqa/valid-labels.lst", "1\n");
  const EvalDocument document = first("piqa");
  EXPECT_THAT(document.contexts, ElementsAre("Question: cut bread\nAnswer:"));
  EXPECT_THAT(continuations(document), ElementsAre(" use a knife ", " use a spoon"));
  EXPECT_EQ(document.gold, 1);
  write("piqa/valid-labels.lst", "1\n0\n");
  EXPECT_THAT(fault("piqa"), HasSubstr("has 2 labels for the 1 lines of"));
  write("piqa/valid-labels.lst", "2\n");
  EXPECT_EQ(fault("piqa"), folder_.file("piqa/valid-labels.lst") + ":1: the label must be 0 or 1, is '2'");
  write("piqa/valid-labels.lst", "");
  EXPECT_THAT(fault("piqa"), HasSubstr("valid-labels.lst: has no label for"));
}

TEST_F(LanguageTasks, QuestionsHaveTheFormsOfTheirSets) {
  const std::string line = R"({"question": "Which?", "choices": ["a", "b", "c"], "label": 2})";
  write("commonsense-llm-adapters/ARC-Easy/test.parsed.jsonl", line);
  write("commonsense-llm-adapters/ARC-Challenge/test.parsed.jsonl", line);
  write("commonsense-llm-adapters/openbookqa/test.parsed.jsonl", line);
  write("commonsense-llm-adapters/social_i_qa/test.parsed.jsonl", line);
  EXPECT_THAT(first("arc_easy").contexts, ElementsAre("Question: Which?\nAnswer:"));
  EXPECT_THAT(first("arc_challenge").contexts, ElementsAre("Question: Which?\nAnswer:"));
  EXPECT_THAT(first("openbookqa").contexts, ElementsAre("Which?"));
  EXPECT_THAT(first("social_iqa").contexts, ElementsAre("Q: Which?\nA:"));
  EXPECT_THAT(continuations(first("social_iqa")), ElementsAre(" a", " b", " c"));

  const std::string path = folder_.file("commonsense-llm-adapters/openbookqa/test.parsed.jsonl");
  write("commonsense-llm-adapters/openbookqa/test.parsed.jsonl", line + "\n" + R"({"question": "Q", "choices": ["a", "b"], "label": 2})");
  EXPECT_EQ(fault("openbookqa"), path + ":2: 'label' must be an integer from 0 to 1, is 2");
  write("commonsense-llm-adapters/openbookqa/test.parsed.jsonl", R"({"question": "Q", "choices": ["a"], "label": 0})");
  EXPECT_EQ(fault("openbookqa"), path + R"(:1: 'choices' must be a list of two or more strings, is ["a"])");
}

TEST_F(LanguageTasks, MultipleChoiceMetrics) {
  write("commonsense-llm-adapters/ARC-Easy/test.parsed.jsonl", R"({"question": "Q", "choices": ["中文", "Chinese", "no"], "label": 0})");
  const std::unique_ptr<EvalTask> task = make("arc_easy");
  const std::vector<EvalDocument> documents = task->documents(0, 1);
  const std::vector<EvalAnswer> answers{{.log_likelihood = -4, .greedy = true}, {.log_likelihood = -9}, {.log_likelihood = -4}};
  // −4 is largest, first of equals; by code point −9/7 is largest; by byte −4/6.
  const Json measured = task->measure(documents[0], answers);
  EXPECT_EQ(measured["acc"], 1);
  EXPECT_EQ(measured["acc_norm"], 0);
  EXPECT_EQ(measured["further"]["acc_bytes"], 1);
  EXPECT_EQ(measured["further"]["exact_match"], 1);
  const EvalFigures figures = task->aggregate(documents, std::vector<Json>{measured});
  EXPECT_EQ(figures.metrics.at("acc").value, 1);
  EXPECT_FALSE(figures.metrics.at("acc").standard_error.has_value());  // there is one document
  EXPECT_EQ(figures.further.size(), 2u);
}

TEST_F(LanguageTasks, WinograndeScoresOneContinuationAfterTwoContexts) {
  write("winogrande/dev.jsonl",
        R"({"sentence": "Ann met Bob because _ had called  .", "option1": "Ann", "option2": "the Bob", "answer": "2"})");
  const std::unique_ptr<EvalTask> task = make("winogrande");
  const EvalDocument document = task->documents(0, 1).at(0);
  EXPECT_THAT(document.contexts, ElementsAre("Ann met Bob because Ann", "Ann met Bob because the Bob"));
  EXPECT_THAT(continuations(document), ElementsAre(" had called  .", " had called  ."));
  EXPECT_EQ(document.requests[1].context, 1u);
  EXPECT_EQ(document.gold, 1);
  // acc_norm divides by the lengths of the contexts, 23 and 27.
  const Json measured = task->measure(document, std::vector<EvalAnswer>{{.log_likelihood = -10}, {.log_likelihood = -11}});
  EXPECT_EQ(measured["acc"], 0);
  EXPECT_EQ(measured["further"]["acc_norm"], 1);

  const std::string place = folder_.file("winogrande/dev.jsonl") + ":1: ";
  write("winogrande/dev.jsonl", R"({"sentence": "a _", "option1": "b", "option2": "c", "answer": ""})");
  EXPECT_EQ(fault("winogrande"), place + R"('answer' must be "1" or "2", is "")");
  write("winogrande/dev.jsonl", R"({"sentence": "a", "option1": "b", "option2": "c", "answer": "1"})");
  EXPECT_EQ(fault("winogrande"), place + R"('sentence' must be a sentence with a blank '_', is "a")");
}

TEST_F(LanguageTasks, WikitextPagesStartAtTitlesOfLevelOne) {
  const std::string text = " \n = One = \n \n Text . \n = = Part = = \n more \n = Two = \n end \n";
  EXPECT_THAT(wikitext_pages(text), ElementsAre(" = One = \n \n Text . \n = = Part = = \n more ", " = Two = \n end \n"));
  write("wikitext-2/wiki.test.raw", text);
  const std::unique_ptr<EvalTask> task = make("wikitext");
  ASSERT_EQ(task->size(), 2);
  const EvalDocument document = task->documents(1, 1).at(0);
  EXPECT_EQ(document.requests[0].continuation, " = Two =\nend\n");
  EXPECT_EQ(document.requests[0].kind, EvalRequest::Kind::rolling);
  EXPECT_EQ(document.fields.at("words"), 6);  // with an empty one at either end
  EXPECT_EQ(document.fields.at("bytes"), 16);
  const std::vector<Json> measured{task->measure(document, std::vector<EvalAnswer>{{.log_likelihood = -12}})};
  const EvalFigures figures = task->aggregate(std::vector<EvalDocument>{document}, measured);
  EXPECT_DOUBLE_EQ(figures.metrics.at("word_perplexity").value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(figures.metrics.at("bits_per_byte").value, 12.0 / 16 / std::log(2.0));
}

TEST_F(LanguageTasks, WikitextDetokenisation) {
  EXPECT_EQ(wikitext_detokenized(" 3 @.@ 5 @,@ 000 well @-@ known ( a [ b ] ) , it 's \" so \" : yes \n"),
            " 3.5,000 well-known (a [b]), it's \"so\": yes\n");
  EXPECT_EQ(wikitext_detokenized("the dogs ' N of 20 \u00b0 C"), "the dogs' 1 of 20\u00b0C");
  EXPECT_EQ(wikitext_detokenized("= = = A = = = \n N /' 5/ ( open"), "=== A ===\nN /'[0-9]/ ( open");
}

TEST_F(LanguageTasks, WikitextRefusesBrokenText) {
  write("wikitext-2/wiki.test.raw", " = One = \n \xff \n");
  EXPECT_EQ(fault("wikitext"), folder_.file("wikitext-2/wiki.test.raw") + ":2: the text is not valid UTF-8");
  write("wikitext-2/wiki.test.raw", " \n\n");
  EXPECT_EQ(fault("wikitext"), folder_.file("wikitext-2/wiki.test.raw") + ": there are no pages in this file");
}

}  // namespace language_tasks_test
}  // namespace based
