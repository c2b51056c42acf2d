#include "based/eval/eval_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "based/core/files.h"
#include "based/eval/request_dump.h"
#include "based/eval/request_stub.h"
#include "based/eval/scorer_model.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based {
namespace eval_run_test {

using ::testing::HasSubstr;

// Documents with two choices, a rolling text and a generation.
class ToyTask final : public EvalTask {
 public:
  explicit ToyTask(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  EvalDocument document(int64_t index) const override {
    EvalDocument document;
    document.place = "toy:" + std::to_string(index + 1);
    document.source = {{"row", index}};
    document.contexts = {"The number " + std::to_string(index * index) + " is the square of"};
    document.requests = {{.continuation = " " + std::to_string(index)},
                         {.continuation = " " + std::to_string(index + 1)},
                         {.kind = EvalRequest::Kind::rolling, .continuation = "rolling text " + std::to_string(index)},
                         {.kind = EvalRequest::Kind::generate, .until = {"\n"}, .max_tokens = 4}};
    document.gold = std::to_string(index);
    return document;
  }
  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    return {{"acc", answers[0].log_likelihood > answers[1].log_likelihood ? 1.0 : 0.0},
            {"nats", answers[2].log_likelihood},
            {"right", answers[3].text == document.gold.get<std::string>() ? 1 : 0}};
  }
  EvalFigures aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const override {
    double sum = 0;
    for (const Json& each : measured) sum += each.at("acc").get<double>();
    return {{{"acc", {sum / static_cast<double>(measured.size()), 0.1}}}, {}};
  }

 private:
  int64_t size_;
};

std::vector<EvalTaskRun> toy_tasks(int64_t size = 20) {
  std::vector<EvalTaskRun> tasks;
  for (const char* name : {"toy", "again"}) {
    EvalTaskRun& run = tasks.emplace_back();
    run.kind = {.name = name, .summary = "", .headline = "acc", .chance = 0.5, .make = {}};
    run.task = std::make_unique<ToyTask>(size);
    run.documents = run.task->documents(0, size);
  }
  return tasks;
}

// The stub model in small blocks; stops after `answers` of them.
class Blocks final : public EvalModel {
 public:
  explicit Blocks(int64_t answers = 1000) : stub_(std::make_unique<ByteTokenizer>(), 64), answers_(answers) {}
  const Tokenizer& tokenizer() const override { return stub_.tokenizer(); }
  int64_t max_length() const override { return stub_.max_length(); }
  Json description() const override { return stub_.description(); }
  uint64_t block_bytes() const override { return 200; }
  std::vector<std::vector<EvalAnswer>> answer(std::span<const EvalDocument> documents, const Progress& progress) override {
    if (answers_-- == 0) throw Error("the model failed");
    documents_ += documents.size();
    return stub_.answer(documents, progress);
  }
  size_t documents() const { return documents_; }

 private:
  StubModel stub_;
  int64_t answers_;
  size_t documents_ = 0;
};

class EvalRun : public testing::Test {
 protected:
  std::string out(const std::string& name) const { return folder_.file(name); }
  EvalReport run(Blocks& model, const std::string& name, int64_t limit = 0) const {
    return run_eval(model, {.tasks = {}, .data = "", .limit = limit, .out = out(name)}, toy_tasks());
  }
  TemporaryFolder folder_;
};

TEST_F(EvalRun, MeasuresEveryDocument) {
  Blocks model;
  const EvalReport report = run_eval(model, {.tasks = {}, .data = "", .out = ""}, toy_tasks());
  ASSERT_EQ(report.tasks.size(), 2U);
  EXPECT_TRUE(report.tasks[1].finished());
  EXPECT_FALSE(report.interrupted);
  const Json json = eval_report_json(report);
  EXPECT_EQ(json["tasks"][0]["per_document"].size(), 20U);
  EXPECT_EQ(json["tasks"][0]["documents"], Json({0, 20}));
  EXPECT_EQ(json["tasks"][0]["aggregate"]["acc"]["stderr"], 0.1);
  const EvalDocument& third = report.tasks[0].documents[3];
  EXPECT_EQ(report.tasks[0].answers[3][0].log_likelihood, stub_score(third.contexts[0], third.requests[0].continuation).log_likelihood);
}

TEST_F(EvalRun, ThatIsStoppedAndContinuedWritesTheSameFile) {
  Blocks whole;
  run(whole, "whole");
  const std::string wanted = read_file(out("whole"));
  EXPECT_EQ(std::count(wanted.begin(), wanted.end(), '\n'), 1 + 2 * 20);

  Blocks failing(2);
  try {
    run(failing, "part");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the model failed; the results of "));
    EXPECT_THAT(error.what(), HasSubstr("are kept in " + out("part")));
  }
  const std::string part = read_file(out("part"));
  ASSERT_LT(part.size(), wanted.size());
  // As a kill may leave it: the next block's first results, and a torn line.
  for (const size_t more : {size_t{0}, size_t{1}, size_t{30}, size_t{300}, size_t{700}}) {
    write_file_atomic(out("part"), wanted.substr(0, part.size() + more));
    Blocks rest;
    const EvalReport report = run(rest, "part");
    EXPECT_EQ(read_file(out("part")), wanted) << more;
    EXPECT_LT(rest.documents(), whole.documents());
    EXPECT_EQ(eval_report_json(report)["tasks"].size(), 2U);
  }
  for (const size_t header : {size_t{0}, size_t{1}, size_t{20}}) {
    write_file_atomic(out("part"), wanted.substr(0, header));
    Blocks rest;
    run(rest, "part");
    EXPECT_EQ(read_file(out("part")), wanted);
  }
  Blocks none;
  run(none, "part");
  EXPECT_EQ(none.documents(), 0U) << "all results were there";
}

TEST_F(EvalRun, RefusesTheFileOfAnotherRunAndDamagedLines) {
  Blocks model;
  run(model, "a");
  const auto message = [&](int64_t limit) {
    try {
      run(model, "a", limit);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(7), HasSubstr("options.limit is 7, and was 0"));
  EXPECT_EQ(message(0), "");
  std::string text = read_file(out("a"));
  const size_t line = text.find('\n', text.find('\n') + 1) + 1;  // the third
  write_file_atomic(out("a"), text.replace(text.find("\"acc\"", line), 5, "\"acc\"x"));
  EXPECT_THAT(message(0), HasSubstr(out("a") + ":3: "));
  write_file_atomic(out("a"), "notes\n");
  EXPECT_THAT(message(0), HasSubstr("name another --out"));
  write_file_atomic(out("a"), "notes");
  EXPECT_THAT(message(0), HasSubstr("name another --out"));
}

TEST_F(EvalRun, KeepsFinishedBlocksIfTheDiskIsFull) {
  Blocks whole;
  run(whole, "whole");
  const std::string wanted = read_file(out("whole"));
  {
    const FileSizeLimit full(wanted.size() / 2);
    Blocks model;
    try {
      run(model, "a");
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(out("a")));
      EXPECT_THAT(error.what(), HasSubstr("are kept"));
    }
  }
  Blocks rest;
  run(rest, "a");
  EXPECT_EQ(read_file(out("a")), wanted);
  EXPECT_LT(rest.documents(), whole.documents());
}

TEST_F(EvalRun, SaysWhereChoicesTieAndWhereAFigureIsAtChance) {
  EvalTaskRun run = std::move(toy_tasks(2)[0]);
  for (EvalDocument& document : run.documents) document.requests.resize(2);
  run.answers = {{{-1, false}, {-1, false}}, {{-1, false}, {-2, false}}};
  EXPECT_EQ(run.tied(), 1);
  EXPECT_TRUE(run.at_chance({{{"acc", {0.6, 0.1}}}, {}}));
  EXPECT_FALSE(run.at_chance({{{"acc", {0.8, 0.1}}}, {}}));
  EXPECT_FALSE(run.at_chance({{{"acc", {0.5, std::nullopt}}}, {}}));
}

// A small model's answers do not depend on forks, and equal whole requests.
TEST(EvalModel, AnswersWithAndWithoutForks) {
  TextModel text{std::make_unique<ByteTokenizer>(), distinct_model(torch::kCPU), "hash"};
  const std::vector<EvalDocument> documents = ToyTask(6).documents(0, 6);
  std::vector<std::vector<EvalAnswer>> first;
  for (const bool fork : {true, false}) {
    ScorerModel model(text, {.fork = fork}, 40);
    const std::vector<std::vector<EvalAnswer>> answers = model.answer(documents, {});
    ASSERT_EQ(answers.size(), documents.size());
    if (first.empty()) first = answers;
    for (size_t i = 0; i < answers.size(); ++i) {
      for (size_t r = 0; r < answers[i].size(); ++r) {
        EXPECT_NEAR(answers[i][r].log_likelihood, first[i][r].log_likelihood, 1e-5 * (1 + std::abs(first[i][r].log_likelihood)));
        EXPECT_EQ(answers[i][r].greedy, first[i][r].greedy);
        EXPECT_EQ(answers[i][r].text, first[i][r].text);
      }
    }
  }
}

TEST(EvalModel, RefusesRequestsThatDoNotFit) {
  TextModel text{std::make_unique<ByteTokenizer>(), distinct_model(torch::kCPU), "hash"};
  ScorerModel model(text, {}, 8);
  std::string context = "context";
  const auto message = [&](EvalRequest request) {
    EvalDocument document;
    document.place = "set.jsonl:5";
    document.contexts = {context};
    document.requests = {std::move(request)};
    try {
      model.answer(std::vector{document}, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({.continuation = "12345678"}), "");
  EXPECT_THAT(message({.continuation = "123456789"}), HasSubstr("set.jsonl:5: a continuation has 9 tokens"));
  EXPECT_THAT(message({.continuation = ""}), HasSubstr("set.jsonl:5: a continuation has no tokens"));
  context = " \n";
  EXPECT_THAT(message({.continuation = "12"}), HasSubstr("set.jsonl:5: the context is only white space"));
  context = "context";
  EXPECT_THAT(message({.kind = EvalRequest::Kind::generate, .continuation = "", .max_tokens = 8}), HasSubstr("set.jsonl:5: generates 8"));
  EXPECT_THROW(ScorerModel(text, {}, -1), UsageError);
}

// A request of 16 tokens, of which a model of 12 reads the last ones.
TEST(EvalModel, SaysHowManyTokensWereCut) {
  TextModel text{std::make_unique<ByteTokenizer>(), distinct_model(torch::kCPU), "hash"};
  ScorerModel model(text, {}, 12);
  EvalDocument document;
  document.contexts = {"context of 14 .", "short"};
  document.requests = {{.context = 0, .continuation = "1"}, {.context = 1, .continuation = "1"}};
  const auto answers = model.answer(std::vector{document}, {});
  EXPECT_EQ(answers[0][0].tokens_cut, 15 + 1 - 13);
  EXPECT_EQ(answers[0][1].tokens_cut, 0);
  EvalTaskRun run = std::move(toy_tasks(1)[0]);
  run.answers = answers;
  EXPECT_EQ(run.cut(), 1);
}

// Values that only the metrics need are part of the run's description, since a continued run keeps the measured metrics.
TEST(EvalRunDescription, ChangesWithTheMetricAndWithWhatItNeeds) {
  const StubModel model(std::make_unique<ByteTokenizer>(), 64);
  const EvalOptions options;
  std::vector<EvalTaskRun> tasks = toy_tasks(2);
  const Json first = eval_run_json(model, options, tasks);
  EXPECT_EQ(eval_run_json(model, options, toy_tasks(2)), first);
  tasks[0].documents[1].fields = {{"answers", {"a"}}};
  const Json other_fields = eval_run_json(model, options, tasks);
  EXPECT_NE(other_fields, first);
  tasks[0].documents[1].fields = Json();
  tasks[0].kind.headline = "acc_norm";
  EXPECT_NE(eval_run_json(model, options, tasks), first);
}

TEST(StubModel, AnswersByHashes) {
  // The table of the goldens' README.
  EXPECT_EQ(stub_score("The cat", " sat").hash, 0x1ae911b413e5b8d0U);
  EXPECT_EQ(stub_score("The cat", " sat").log_likelihood, -2.9592285400219844);
  EXPECT_TRUE(stub_score("The cat", " a").greedy);
  EXPECT_EQ(stub_score("", " café").hash, 0xae19563b2de4c208U);
  EXPECT_EQ(stub_window({{50256}, {464, 3797}}).hash, 0xb623eae42c9839deU);
  std::set<int> variants;
  for (const char* gold : {"a b", "née", "c", "d", "e", "f", "g", "h", "i", "j", "k"}) {
    const StubText text = stub_text("x", gold, {"\n"});
    variants.insert(text.variant);
    EXPECT_THAT(text.raw, HasSubstr("\nThe value is " + std::string(gold) + "."));
    EXPECT_EQ(text.text, text.raw.substr(0, text.raw.find('\n')));
    EXPECT_EQ(text.text.ends_with("."), text.variant == 0);
  }
  EXPECT_GT(variants.size(), 1U);
}

TEST(DumpedRequests, HaveTextsIdsHashesAndTheStubsAnswers) {
  const ByteTokenizer tokenizer;
  EvalDocument document = ToyTask(3).documents(2, 1).front();
  document.few_shot = {4, 1};
  document.requests.erase(document.requests.begin() + 2);  // the rolling one
  const Json json = document_requests(tokenizer, document, 24);
  EXPECT_EQ(json["doc"], 2);
  EXPECT_EQ(json["fewshot"], Json({4, 1}));
  EXPECT_EQ(json["contexts"][0]["tokens"], json["contexts"][0]["bytes"]);
  EXPECT_EQ(json["requests"][0]["type"], "loglikelihood");
  EXPECT_EQ(json["requests"][0]["ids"], Json({' ', '2'}));
  EXPECT_EQ(json["requests"][0]["dropped"], json["contexts"][0]["tokens"].get<int64_t>() + 2 - 25);
  EXPECT_EQ(json["requests"][2]["type"], "generate_until");
  EXPECT_EQ(json["requests"][2]["until"], Json({"\n"}));
  document.requests = {{.kind = EvalRequest::Kind::rolling, .continuation = "rolling"}};
  document.fields = {{"page", "page"}, {"words", 1}, {"bytes", 4}};
  const Json rolling = document_requests(tokenizer, document, 4);
  EXPECT_EQ(rolling["windows"].size(), 2U);
  EXPECT_EQ(rolling["windows"][1]["context"], 2);
  EXPECT_EQ(rolling["page_bytes"], 4);
}

}  // namespace eval_run_test
}  // namespace based
