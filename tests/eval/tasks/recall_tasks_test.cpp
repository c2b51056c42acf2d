// The recall tasks: containment, cuts to tokens, data sets of a few lines, and lm-eval's requests and metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/eval/tasks/contains.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace recall_tasks_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct ContainsCase {
  std::string text, label;
  bool contained;
};

TEST(Contains, FollowsPythonsIgnoreCase) {
  const ContainsCase cases[]{
      {" the KELVIN scale", "kelvin", true},
      {" (a+b)*", "(A+B)*", true},  // taken literally
      {" aXb", "a.b", false},
      {"", "", true},
      {" abc", "", true},
      {" ab", "abc", false},
      {" \u212aelvin", "kelvin", true},      // the Kelvin sign
      {" \u0130zmir", "izmir", true},        // a capital I with a dot, whose lower case has two characters
      {" DI\u015e", "d\u0131\u015f", true},  // a dotless i equals I
      {" mi\u017ft", "MIST", true},          // a long s
      {" gro\u00df", "GROSS", false},        // one character matches one
      {" o\ufb03ce", "office", false},       // no ligatures
      {" \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u03c3\u038a\u03a3\u03a5\u03a6\u039f\u03a3", true},  // sigmas
      {" \u00b5m", "\u039cM", true},                                                                        // the micro sign equals mu
      {" \u1c80", "\u0412", true},                                                                          // a rounded ve
      {" a\u0301", "\u00e1", false},                                                                        // no composition
      {" \xff", "\xff", true},  // bytes that are not UTF-8 match themselves
      {" \xc3", "\xe3", false},
  };
  for (const ContainsCase& each : cases)
    EXPECT_EQ(contains_ignoring_case(each.text, each.label), each.contained) << each.text << " " << each.label;
}

TEST(Contains, AgreesWithLmEval) {
  const std::string path = test::golden("eval/cases/cases.json");
  BASED_NEEDS_FILE(path);
  const Json cases = parse_json(read_file(path), path).at("contains");
  ASSERT_GT(cases.size(), 10U);
  for (const Json& each : cases)
    EXPECT_EQ(contains_ignoring_case(each.at("prediction").get<std::string>(), each.at("label").get<std::string>()),
              each.at("contains") == 1)
        << each;
}

TEST(FirstTokens, ReplacesACharacterThatTheCutSplits) {
  const ByteTokenizer bytes;
  EXPECT_EQ(first_tokens(bytes, "abc", 2), "ab");
  EXPECT_EQ(first_tokens(bytes, "abc", 3), "abc");
  EXPECT_EQ(first_tokens(bytes, "abc", 9), "abc");
  EXPECT_EQ(first_tokens(bytes, "a\u00e9b", 2), "a\ufffd");
  EXPECT_EQ(first_tokens(bytes, "a\u00e9b", 3), "a\u00e9");
  for (const int64_t count : {2, 3, 4}) EXPECT_EQ(first_tokens(bytes, "a\U0001f600b", count), "a\ufffd") << count;
  EXPECT_EQ(first_tokens(bytes, "a\U0001f600b", 5), "a\U0001f600");
  EXPECT_EQ(first_tokens(bytes, "<|endoftext|>ab", 2), "<|endoftext|>a");  // a special token is one token
}

class RecallData : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const {
    make_folder(folder_of(folder_.file(name)));
    write_file_atomic(folder_.file(name), content);
  }
  EvalTaskOptions options() const { return {.data = folder_.path().string(), .shots = 0, .tokenizer = &tokenizer_, .statements = {}}; }

  TemporaryFolder folder_;
  const ByteTokenizer tokenizer_;
};

std::string swde_page(int number) {
  const Json page{{"vertical", "book"},
                  {"site", "shop"},
                  {"page", std::to_string(number)},
                  {"attributes", {{"author", {"Ann " + std::to_string(number), "Bob"}}, {"isbn_13", {": 978"}}, {"title", {" Old "}}}},
                  {"text", "Page " + std::to_string(number)}};
  return dump_json(page) + "\n";
}

TEST_F(RecallData, SwdeAsksForTheAttributesInTurn) {
  std::string lines;
  for (int i = 0; i < 64; ++i) lines += swde_page(i);
  write("swde/book_two_sites_text.jsonl", lines);
  const auto task = eval_task_swde().make(options());
  ASSERT_EQ(task->size(), 64);
  const std::vector<EvalDocument> documents = task->documents(0, 64);
  EXPECT_THAT(documents[0].contexts, ElementsAre("Page 0\n\nSummary of information above...\nauthor:"));
  EXPECT_EQ(documents[0].gold, "Ann 0");
  EXPECT_EQ(dump_json(documents[1].source), R"({"row":62,"page":"shop/62","key":"isbn 13"})");
  EXPECT_THAT(documents[1].contexts, ElementsAre("Page 62\n\nSummary of information above...\nauthor: Ann 62\nisbn 13:"));
  EXPECT_EQ(documents[1].gold, "978");
  EXPECT_EQ(documents[2].source["row"], 1);
  EXPECT_EQ(documents[2].gold, "Old");
  EXPECT_EQ(documents[3].source["row"], 63);
  EXPECT_EQ(documents[4].source["row"], 2);
  std::set<int64_t> rows;
  for (const EvalDocument& document : documents) rows.insert(document.source["row"].get<int64_t>());
  EXPECT_EQ(rows.size(), 64U);
  const EvalRequest& request = documents[0].requests.at(0);
  EXPECT_EQ(request.kind, EvalRequest::Kind::generate);
  EXPECT_THAT(request.until, ElementsAre("\n"));
  EXPECT_EQ(request.max_tokens, 48);
  EXPECT_THAT(message_of<Error>([&] {
                write("swde/book_two_sites_text.jsonl", lines + R"({"site":"s","page":"1","attributes":{"author":[]},"text":"t"})");
                eval_task_swde().make(options());
              }),
              AllOf(HasSubstr("book_two_sites_text.jsonl:65"), HasSubstr("attributes.author")));
}

std::string technical_document(const std::string& id, const std::string& source, const std::string& text) {
  return dump_json(Json{{"source", source}, {"id", id}, {"text", text}}) + "\n";
}

TEST_F(RecallData, FdaTakesLongDocumentsWithWholeHeaders) {
  const std::string header = "PEP: 1\nTitle: A Title\nAuthor: A. Author\nStatus: Final\nType: Process\nCreated: 01-Jan-2001\n\n";
  const std::string continued = "PEP: 2\nTitle: B\nAuthor: B,\n  C\nStatus: Final\nType: Process\nCreated: 01-Jan-2001\n\n";
  const std::string body(2000, 'x');
  write("text-technical-docs/docs.jsonl",
        technical_document("pep-1", "python/peps", header + body) + technical_document("pep-2", "python/peps", continued + body) +
            technical_document("pep-3", "python/peps", header + "short") + technical_document("rfc-1", "rust-lang/rfcs", header + body) +
            technical_document("pep-4", "python/peps", header + body));
  const auto task = eval_task_fda().make(options());
  ASSERT_EQ(task->size(), 2);
  const std::vector<EvalDocument> documents = task->documents(0, 2);
  EXPECT_EQ(dump_json(documents[0].source), R"({"id":"pep-1","key":"title"})");
  EXPECT_EQ(documents[0].contexts.at(0), (header + body).substr(0, 1920) + "\nTitle:");
  EXPECT_EQ(documents[0].gold, "A Title");
  EXPECT_EQ(dump_json(documents[1].source), R"({"id":"pep-4","key":"author"})");
  EXPECT_EQ(documents[1].gold, "A. Author");
}

class SquadData : public RecallData {
 protected:
  SquadData() {
    write("squad-v1.1/dev-v1.1.json", R"({"data": [{"title": "Rivers", "paragraphs": [{"context": "The Aare joins the Rhine.", "qas": [
      {"id": "q1", "question": "What is the river that joins the Rhine?", "answers": [{"text": "the Aare"}, {"text": "Aare"}]},
      {"id": "q2", "question": "What is the river called?", "answers": [{"text": "Aare"}]},
      {"id": "q3", "question": "What does the Aare join?", "answers": [{"text": "the Rhine"}]},
      {"id": "q4", "question": "Who were the authors of the map ?", "answers": [{"text": "unknown"}]}]}]}]})");
  }
};

TEST_F(SquadData, StatementsComeFromAFileOfEitherForm) {
  write("squad-v1.1/statements.jsonl", R"({"id": "q3", "statement": "The Aare joins the", "value": "Rhine"})");
  const auto task = eval_task_squad_completion().make(options());
  ASSERT_EQ(task->size(), 1);
  const EvalDocument document = task->documents(0, 1).at(0);
  EXPECT_THAT(document.contexts, ElementsAre("The Aare joins the Rhine.\nThe Aare joins the"));
  EXPECT_EQ(document.gold, "Rhine");
  EXPECT_EQ(dump_json(document.source), R"({"id":"q3","title":"Rivers"})");

  EvalTaskOptions requests = options();
  requests.statements = folder_.file("requests.jsonl");
  write("requests.jsonl",
        dump_json({{"source", document.source}, {"gold", document.gold}, {"contexts", {{{"text", document.contexts[0]}}}}}));
  const EvalDocument same = eval_task_squad_completion().make(requests)->documents(0, 1).at(0);
  EXPECT_EQ(same.contexts, document.contexts);
  EXPECT_EQ(same.gold, document.gold);

  write("requests.jsonl", R"({"id": "q9", "statement": "The", "value": "x"})");
  EXPECT_THAT(message_of<Error>([&] { eval_task_squad_completion().make(requests); }),
              AllOf(HasSubstr("requests.jsonl:1"), HasSubstr("q9")));
}

TEST_F(SquadData, MissingStatementsAreAnError) {
  EXPECT_THAT(message_of<UsageError>([&] { eval_task_squad_completion().make(options()); }),
              AllOf(HasSubstr("statements.jsonl"), HasSubstr("squad_rewritten")));
}

TEST_F(SquadData, QuestionsAreRewrittenByARule) {
  const auto task = eval_task_squad_rewritten().make(options());
  ASSERT_EQ(task->size(), 2);  // neither q2, whose statement would not be a sentence, nor q3
  EXPECT_THAT(task->documents(0, 1).at(0).contexts, ElementsAre("The Aare joins the Rhine.\nThe river that joins the Rhine is"));
  EXPECT_EQ(task->documents(0, 1).at(0).gold, "Aare");
  EXPECT_THAT(task->documents(1, 1).at(0).contexts, ElementsAre("The Aare joins the Rhine.\nThe authors of the map were"));
}

TEST_F(RecallData, PublishedSetsSendTheirTextStripped) {
  write("based-fda/validation.jsonl",
        R"({"doc_id": "3", "file_name": "K1.txt", "key": "Type", "value": "Assay", "text": " A form.\nType: "})"
        "\n");
  const auto task = eval_task_fda_published().make(options());
  const EvalDocument document = task->documents(0, 1).at(0);
  EXPECT_THAT(document.contexts, ElementsAre("A form.\nType:"));
  EXPECT_EQ(document.gold, "Assay");
  EXPECT_EQ(dump_json(document.source), R"({"doc_id":"3","file_name":"K1.txt","key":"Type"})");
  EXPECT_TRUE(eval_task_fda_published().comparable);
  EXPECT_FALSE(eval_task_fda().comparable);

  write("based-fda/validation.jsonl", R"({"text": "A form."})");
  EXPECT_THAT(message_of<Error>([&] { eval_task_fda_published().make(options()); }),
              AllOf(HasSubstr("validation.jsonl:1"), HasSubstr("value")));
}

TEST(RecallTask, MeasuresContainmentAndSquadsMetrics) {
  const auto task = make_recall_task({{"", "The capital is", "Paris", "f:1", {}}, {"", "It has", "two rivers", "f:2", {}}}, nullptr);
  const std::vector<EvalDocument> documents = task->documents(0, 2);
  const EvalAnswer first{.text = " PARIS."}, second{.text = " rivers"};
  const std::vector<Json> measured{task->measure(documents[0], std::span(&first, 1)), task->measure(documents[1], std::span(&second, 1))};
  EXPECT_EQ(dump_json(measured[0]), R"({"contains":1,"further":{"exact":1,"f1":1.0}})");
  EXPECT_EQ(measured[1]["contains"], 0);
  EXPECT_NEAR(measured[1]["further"]["f1"].get<double>(), 2.0 / 3, 1e-15);
  const EvalFigures figures = task->aggregate(documents, measured);
  EXPECT_EQ(figures.metrics.at("contains").value, 0.5);
  EXPECT_FALSE(figures.metrics.at("contains").standard_error);
  EXPECT_EQ(figures.further.at("exact").value, 0.5);
}

// The requests of a task's golden files, and the metrics of the answers in them.
class RecallGoldens : public testing::TestWithParam<EvalTaskKind (*)()> {};

TEST_P(RecallGoldens, AgreeWithLmEval) {
  const EvalTaskKind kind = GetParam()();
  const std::string folder = test::golden("eval/" + kind.name), requests = folder + "/requests.jsonl";
  BASED_NEEDS_FILE(requests);
  for (const char* set : {"gpt2-bpe", "swde", "squad-v1.1", "text-technical-docs"}) BASED_NEEDS_FILE(test::data_set(set));
  const auto tokenizer = make_tokenizer(test::data_set("gpt2-bpe"));
  const auto task =
      kind.make({.data = folder_of(test::data_set("swde")), .shots = 0, .tokenizer = tokenizer.get(), .statements = requests});
  const Json expected = parse_json(read_file(folder + "/metrics.json"), folder);

  std::vector<EvalDocument> documents;
  std::vector<Json> measured;
  std::ifstream lines(requests);
  for (std::string line; std::getline(lines, line);) {
    const Json golden = parse_json(line, requests);
    const EvalDocument& document = documents.emplace_back(task->documents(golden["doc"].get<int64_t>(), 1).at(0));
    SCOPED_TRACE(kind.name + " " + std::to_string(document.index));
    EXPECT_EQ(document.gold, golden["gold"]);
    EXPECT_EQ(document.source, golden["source"]);
    const std::string& context = document.contexts.at(0);
    EXPECT_EQ(hex(xxh64(std::as_bytes(std::span(context)))), golden["contexts"][0]["xxh64"]);
    const std::vector<int32_t> ids = tokenizer->encode(context, Specials::recognised);
    EXPECT_EQ(hex(xxh64(std::as_bytes(std::span(ids)))), golden["contexts"][0]["ids_xxh64"]);
    const EvalAnswer answer{.text = golden["requests"][0]["text"].get<std::string>()};
    const Json& metrics = measured.emplace_back(task->measure(document, std::span(&answer, 1)));
    const Json& wanted = expected["per_document"][measured.size() - 1];
    EXPECT_EQ(metrics["contains"], wanted["contains"]);
    EXPECT_EQ(metrics["further"]["exact"], wanted["further"]["exact"]);
    EXPECT_NEAR(metrics["further"]["f1"].get<double>(), wanted["further"]["f1"].get<double>(), 1e-12);
  }
  ASSERT_EQ(documents.size(), 32U);
  const EvalFigures figures = task->aggregate(documents, measured);
  EXPECT_NEAR(figures.metrics.at("contains").value, expected["aggregate"]["contains"]["value"].get<double>(), 1e-12);
  EXPECT_NEAR(figures.further.at("f1").value, expected["further"]["f1"]["value"].get<double>(), 1e-12);
}
INSTANTIATE_TEST_SUITE_P(Tasks, RecallGoldens, testing::Values(eval_task_swde, eval_task_fda, eval_task_squad_completion));

}  // namespace recall_tasks_test
}  // namespace based
