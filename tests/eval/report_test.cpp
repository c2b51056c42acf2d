// Tables of evaluations and paired differences.
#include "based/eval/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "based/core/files.h"
#include "based/eval/compare.h"
#include "based/eval/left_pad.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace report_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Json figure(double value, const Json& error) { return {{"value", value}, {"stderr", error}}; }

Json task_json(const std::string& name, const std::string& metric, const std::vector<Json>& items, const Json& total) {
  Json documents = Json::array();
  for (size_t i = 0; i < items.size(); ++i) documents.push_back({{"doc", i}, {metric, items[i]}});
  const EvalTaskKind kind = find_eval_task(name);
  return {{"task", name},
          {"num_fewshot", 0},
          {"headline", kind.headline},
          {"chance", kind.chance},
          {"comparable", kind.comparable},
          {"tied", 0},
          {"aggregate", {{metric, total}}},
          {"per_document", documents}};
}

Json run_json(int64_t limit, int64_t max_length) {
  return {{"model", {{"model", "0123"}, {"max_length", max_length}}}, {"options", {{"seed", 1234}, {"offset", 0}, {"limit", limit}}}};
}

class ResultFiles : public testing::Test {
 protected:
  ModelResults read(const std::string& name, const std::vector<Json>& tasks, const Json& run = run_json(0, 64)) const {
    write_file_atomic(folder_.file(name), dump_json(Json{{"run", run}, {"tasks", tasks}, {"complete", true}}));
    return read_eval_results(folder_.file(name));
  }
  TemporaryFolder folder_;
};

TEST_F(ResultFiles, NotesNameChanceTiesAndOtherDocuments) {
  Json tied = task_json("piqa", "acc", {1, 0, 1, 1}, figure(0.52, 0.02));
  tied["tied"] = 3;
  const ModelResults results = read("a.json", {tied, task_json("winogrande", "acc", {0, 0, 1, 0}, figure(0.40, 0.02)),
                                               task_json("copa", "acc", {1, 1, 1, 0}, figure(0.60, 0.02)),
                                               task_json("swde", "contains", {1, 0, 0, 0}, figure(0.25, "N/A"))});
  EXPECT_THAT(result_notes(results.tasks[0]), ElementsAre("at chance", "all choices tie in 3 of 4"));
  EXPECT_THAT(result_notes(results.tasks[1]), ElementsAre("below chance"));
  EXPECT_TRUE(result_notes(results.tasks[2]).empty());
  EXPECT_THAT(result_notes(results.tasks[3]), ElementsAre(HasSubstr("not comparable")));
  EXPECT_DOUBLE_EQ(*headline_error(results.tasks[3]), 0.25);  // sqrt(0.75 / 3) / 2, which lm-eval does not give
  EXPECT_EQ(results.name, "a");
}

TEST_F(ResultFiles, TablesHaveErrorsChanceThePapersFiguresAndAverages) {
  std::vector<Json> tasks;
  for (const auto& [name, metric] :
       {std::pair("hellaswag", "acc_norm"), {"piqa", "acc"}, {"arc_easy", "acc"}, {"arc_challenge", "acc_norm"}, {"winogrande", "acc"}})
    tasks.push_back(task_json(name, metric, {1, 0}, figure(0.5, 0.06)));
  Json lambada = task_json("lambada_openai", "acc", {1, 0}, figure(0.2, 0.06));
  lambada["aggregate"]["perplexity"] = figure(81.5, 3.25);
  tasks.push_back(lambada);
  tasks.push_back(task_json("swde", "contains", {1, 0}, figure(0.5, "N/A")));
  const ModelResults results = read("based.json", tasks);

  const std::string table = task_table(results, "Based 363m/10b", TableForm::markdown);
  EXPECT_THAT(table, HasSubstr("| piqa | 2 | acc | 50.00 ± 6.00 | 50.00 | 64.42 | at chance |"));
  EXPECT_THAT(table, HasSubstr("| lambada_openai | 2 | perplexity | 81.50 ± 3.25 | - | 21.80 |"));
  EXPECT_THAT(table, HasSubstr("| swde | 2 | contains | 50.00 ± 50.00 | - | - |"));               // the paper's SWDE has other documents
  EXPECT_THAT(table, HasSubstr("| average of lm-eval-harness |  |  | 45.00 ± 2.45 |  |  |  |"));  // (5 · 0.5 + 0.2) / 6, 0.06 / √6

  const std::string latex = task_table(results, "", TableForm::latex);
  EXPECT_THAT(latex, HasSubstr("\\begin{tabular}{lrrrrr}"));
  EXPECT_THAT(latex, HasSubstr("arc\\_easy & 2 & acc & 50.00 $\\pm$ 6.00"));
  EXPECT_THAT(message_of<UsageError>([&] { task_table(results, "Based 2b", TableForm::latex); }), HasSubstr("Based 363m/10b"));

  const Json totals = results_json(results);
  EXPECT_EQ(totals["name"], "based");
  EXPECT_EQ(totals["tasks"][1]["metrics"]["acc"], figure(0.5, 0.06));
  EXPECT_EQ(totals["tasks"][6]["metrics"]["contains"]["stderr"], 0.5);
  EXPECT_EQ(totals["tasks"][1]["notes"], Json({"at chance"}));
  EXPECT_NEAR(totals["averages"]["average of lm-eval-harness"]["value"].get<double>(), 0.45, 1e-15);

  Json run = run_json(0, 64);
  run["model"]["state_bytes"] = 4096;
  const ModelResults other = read("mamba.json", {task_json("piqa", "acc", {1, 1}, figure(1.0, 0.0))}, run);
  const std::string models = model_table(std::vector{results, other}, TableForm::markdown);
  EXPECT_THAT(models, HasSubstr("| task | based | mamba |"));
  EXPECT_THAT(models, HasSubstr("| bytes of state | - | 4096 |"));
  EXPECT_THAT(models, HasSubstr("| piqa (acc) | 50.00 ± 6.00 | 100.00 ± 0.00 |"));
  EXPECT_THAT(models, HasSubstr("| average of lm-eval-harness | 45.00 ± 2.45 | - |"));
}

TEST_F(ResultFiles, FilesOfOneModelMakeOneRow) {
  const auto piqa = [](double value) { return task_json("piqa", "acc", {1, 0}, figure(value, 0.1)); };
  const Json copa = task_json("copa", "acc", {1, 1}, figure(1.0, 0.0));
  Json padded = run_json(0, 64), other = run_json(0, 64);
  padded["model"]["left_pad"] = 32;
  other["options"]["limit"] = 2;  // an option of the evaluation, not of the model
  const auto joined = join_results_of_models({read("based-language.json", {piqa(0.5)}), read("based-superglue0.json", {copa}, other),
                                              read("based-padded.json", {copa}, padded), read("again.json", {piqa(0.25)})});
  ASSERT_EQ(joined.size(), 3U);
  EXPECT_EQ(joined[0].name, "based");
  EXPECT_EQ(joined[0].tasks.size(), 2U);
  EXPECT_EQ(joined[1].name, "based-padded") << "a model that is read in another form";
  EXPECT_EQ(joined[2].name, "again") << "no figure replaces another of the same task";
}

TEST_F(ResultFiles, KeptResultsMakeTheTablesOfTheirFiles) {
  Json tied = task_json("piqa", "acc", {1, 0, 1, 1}, figure(0.75, 0.2));
  tied["tied"] = 3;
  Json wikitext = task_json("wikitext", "word_perplexity", {1, 2}, figure(81.5, "N/A"));
  Json run = run_json(0, 64);
  run["model"]["state_bytes"] = 4096;
  const ModelResults first = read("based.json", {tied, task_json("swde", "contains", {1, 0, 0, 0}, figure(0.25, "N/A"))}),
                     second = read("mamba.json", {wikitext, task_json("copa", "acc", {1, 0}, figure(0.5, 0.5))}, run);
  const std::string path = folder_.file("results.jsonl");
  write_file_atomic(path, dump_json(results_json(first)) + "\n" + dump_json(results_json(second)) + "\n");
  const std::vector<ModelResults> kept = read_kept_results(path);
  ASSERT_EQ(kept.size(), 2U);
  for (const TableForm form : {TableForm::markdown, TableForm::latex}) {
    EXPECT_EQ(model_table(kept, form), model_table(std::vector{first, second}, form));
    EXPECT_EQ(task_table(kept[0], "Based 363m/10b", form), task_table(first, "Based 363m/10b", form));
    EXPECT_EQ(task_table(kept[1], "", form), task_table(second, "", form));
  }
  EXPECT_EQ(results_json(kept[0]), results_json(first)) << "so that keeping them again changes nothing";

  Json broken = results_json(first);
  broken["tasks"][0]["metrics"]["acc"]["value"] = "high";
  write_file_atomic(path, dump_json(results_json(second)) + "\n" + dump_json(broken) + "\n");
  EXPECT_THAT(message_of<Error>([&] { read_kept_results(path); }),
              AllOf(HasSubstr("results.jsonl:2: "), HasSubstr("tasks[0].metrics.acc.value")));
  write_file_atomic(path, "");
  EXPECT_THAT(message_of<Error>([&] { read_kept_results(path); }),
              AllOf(HasSubstr(path), HasSubstr("there are no documents in this file")));
}

TEST_F(ResultFiles, DamagedFilesAreRefusedByField) {
  Json twice = task_json("piqa", "acc", {1, 0}, figure(0.5, 0.1));
  twice["per_document"][1]["doc"] = 0;
  EXPECT_THAT(message_of<Error>([&] { read("a.json", {twice}); }), AllOf(HasSubstr("a.json"), HasSubstr("per_document[1].doc")));
  EXPECT_THAT(message_of<Error>([&] { read("a.json", {task_json("piqa", "acc", {1}, figure(0.5, "none"))}); }),
              HasSubstr("aggregate.acc.stderr"));
  EXPECT_THAT(message_of<Error>([&] { read("a.json", {task_json("piqa", "acc_norm", {1}, figure(0.5, 0.1))}); }), HasSubstr("metric acc"));
  EXPECT_THAT(message_of<Error>([&] { read("a.json", {task_json("piqa", "acc", {}, figure(0.5, 0.1))}); }), HasSubstr("no document"));
}

TEST_F(ResultFiles, PairedDifferencesAreOverTheCommonDocuments) {
  const ModelResults first = read("a.json", {task_json("piqa", "acc", {1, 0, 0, 1, 1}, figure(0.6, 0.2))}, run_json(5, 64));
  const ModelResults second = read("b.json", {task_json("piqa", "acc", {1, 1, 0, 0}, figure(0.5, 0.2))}, run_json(4, 64));
  const PairedResult acc = compare_results(first, second).differences.at(0);
  EXPECT_EQ(acc.documents, 4);
  EXPECT_DOUBLE_EQ(acc.first, 0.5);
  EXPECT_DOUBLE_EQ(acc.second, 0.5);
  EXPECT_DOUBLE_EQ(acc.difference, 0);
  const double error = std::sqrt(2.0 / 3) / 2;  // the differences are 0, 1, 0, −1
  EXPECT_DOUBLE_EQ(*acc.standard_error, error);
  EXPECT_DOUBLE_EQ(acc.high(), 1.96 * error);
  EXPECT_FALSE(acc.resolved());
}

TEST_F(ResultFiles, PerplexitiesAreComparedInNats) {
  const auto lambada = [](const std::vector<Json>& items, double perplexity) {
    Json json = task_json("lambada_openai", "perplexity", items, figure(perplexity, 1));
    json["aggregate"]["acc"] = figure(0.5, 0.5);
    return json;
  };
  const auto texts = [](double a, double b) { return std::vector<Json>{Json{a, 4}, Json{b, 6}}; };
  const ModelResults first =
      read("a.json", {task_json("wikitext", "word_perplexity", texts(-8, -12), figure(7.4, "N/A")), lambada({-2, -4}, 20)});
  const ModelResults second =
      read("b.json", {task_json("wikitext", "word_perplexity", texts(-6, -9), figure(4.5, "N/A")), lambada({-1, -3}, 7.4)});
  const std::vector<PairedResult> results = compare_results(first, second).differences;  // acc is not compared: no document has it here
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].metric, "word_perplexity in nats a word");
  EXPECT_DOUBLE_EQ(results[0].first, 2.0);  // 20 nats of 10 words
  EXPECT_DOUBLE_EQ(results[0].difference, -0.5);
  EXPECT_EQ(results[1].metric, "perplexity in nats a document");
  EXPECT_DOUBLE_EQ(results[1].difference, -1);
  EXPECT_DOUBLE_EQ(*results[1].standard_error, 0);
  EXPECT_TRUE(results[1].resolved());
}

TEST_F(ResultFiles, OtherTasksAndOptionsAreRefused) {
  const std::vector<Json> piqa{task_json("piqa", "acc", {1, 0}, figure(0.5, 0.2))};
  const ModelResults first = read("a.json", piqa);
  EXPECT_THAT(message_of<UsageError>([&] { compare_results(first, read("b.json", {task_json("copa", "acc", {1}, figure(1, 0))})); }),
              AllOf(HasSubstr("only the first one"), HasSubstr("piqa"), Not(HasSubstr("copa"))));
  EXPECT_THAT(message_of<UsageError>([&] { compare_results(first, read("b.json", piqa, run_json(0, 32))); }),
              HasSubstr("max_length is 64 in the first one, and 32"));
  Json padded = run_json(0, 64);
  padded["model"]["left_pad"] = 32;
  const ModelResults with_padding = read("b.json", piqa, padded);
  EXPECT_THAT(message_of<UsageError>([&] { compare_results(first, with_padding); }),
              HasSubstr("left_pad is null in the first one, and 32"));
  EXPECT_EQ(compare_results(first, with_padding, true).differences.size(), 1U);
  Json a = run_json(0, 64), b = run_json(0, 64);
  a["tasks"]["piqa"] = {{"documents", 2}, {"requests", "00"}};
  b["tasks"]["piqa"] = {{"documents", 2}, {"requests", "01"}};
  EXPECT_THAT(message_of<UsageError>([&] { compare_results(read("a.json", piqa, a), read("b.json", piqa, b)); }),
              HasSubstr("requests of piqa differ"));
  Json later = piqa.front();
  later["per_document"] = {{{"doc", 7}, {"acc", 1}}};
  EXPECT_THAT(message_of<UsageError>([&] { compare_results(first, read("b.json", {later})); }), HasSubstr("no document of piqa"));
}

TEST(PadLeft, PadsBatchesOfSimilarLength) {
  std::vector<GenerationRequest> requests(4);
  requests[0].context = {1};
  requests[1].context = {1, 2, 3, 4};
  requests[2].context = {1, 2};
  requests[3].context = {1, 2, 3};
  pad_left(requests, 2, 9);
  EXPECT_THAT(requests[0].context, ElementsAre(9, 1));  // with requests[2]
  EXPECT_THAT(requests[1].context, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(requests[2].context, ElementsAre(1, 2));
  EXPECT_THAT(requests[3].context, ElementsAre(9, 1, 2, 3));
}

}  // namespace report_test
}  // namespace based
