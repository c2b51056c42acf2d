// The language tasks against lm-eval's requests and metrics: contexts, continuations, gold answers and metrics of the stored answers, and
// single functions on lm-eval's own inputs.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <fstream>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/eval/tasks/hellaswag.h"
#include "based/eval/tasks/multiple_choice.h"
#include "based/eval/tasks/python_random.h"
#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"
#include "based/eval/tasks/wikitext.h"
#include "tests/data/goldens.h"

namespace based {
namespace task_goldens_test {

constexpr double kTolerance = 1e-12;

std::string xxh64(const std::string& text) { return hex(XXH64(text.data(), text.size(), 0)); }

void expect_close(double value, double expected) { EXPECT_NEAR(value, expected, kTolerance * std::max(1e-300, std::fabs(expected))); }

// Numbers to the tolerance, everything else exactly. 1.0 equals 1.
void expect_same(const Json& value, const Json& expected) {
  if (expected.is_number()) {
    ASSERT_TRUE(value.is_number()) << value;
    expect_close(value.get<double>(), expected.get<double>());
  } else if (expected.is_structured()) {
    ASSERT_EQ(value.size(), expected.size()) << value << " " << expected;
    for (const auto& [key, item] : expected.items()) {
      ASSERT_TRUE(expected.is_array() || value.contains(key)) << key;
      expect_same(expected.is_array() ? value.at(std::stoul(key)) : value.at(key), item);
    }
  } else {
    EXPECT_EQ(value, expected);
  }
}

void expect_figures(const std::map<std::string, EvalFigure>& figures, const Json& expected) {
  ASSERT_EQ(figures.size(), expected.size());
  for (const auto& [name, figure] : figures) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(expected.contains(name));
    expect_close(figure.value, expected[name]["value"].get<double>());
    const Json& error = expected[name]["stderr"];
    ASSERT_EQ(figure.standard_error.has_value(), error.is_number());
    if (figure.standard_error) expect_close(*figure.standard_error, error.get<double>());
  }
}

// The answers that the stored requests were given, and a comparison of the requests themselves.
std::vector<EvalAnswer> compare_requests(const EvalDocument& document, const Json& expected) {
  if (expected.contains("page_xxh64")) {
    EXPECT_EQ(xxh64(document.fields.at("page").get<std::string>()), expected["page_xxh64"]);
    EXPECT_EQ(xxh64(document.requests.at(0).continuation), expected["target_xxh64"]);
    EXPECT_EQ(document.fields.at("words"), expected["words"]);
    EXPECT_EQ(document.fields.at("bytes"), expected["bytes"]);
    return {{.log_likelihood = expected["ll"].get<double>()}};
  }
  std::vector<std::string> contexts, hashes;
  for (const std::string& context : document.contexts) contexts.push_back(xxh64(context));
  for (const Json& context : expected["contexts"]) hashes.push_back(context["xxh64"].get<std::string>());
  EXPECT_EQ(contexts, hashes);
  std::vector<EvalAnswer> answers;
  EXPECT_EQ(document.requests.size(), expected["requests"].size());
  for (size_t i = 0; i < document.requests.size(); ++i) {
    const Json& request = expected["requests"][i];
    EXPECT_EQ(document.requests[i].context, request["context"].get<size_t>());
    EXPECT_EQ(document.requests[i].continuation, request["continuation"].get<std::string>());
    answers.push_back({.log_likelihood = request["ll"].get<double>(), .greedy = request["greedy"].get<bool>()});
  }
  return answers;
}

// `folder` holds the stored requests of the task of this name, `data` the file of its data set.
void compare_task(const std::string& name, const std::string& folder, const std::string& data, int64_t shots = 0) {
  const std::string requests = test::golden("eval/" + folder + "/requests.jsonl");
  BASED_NEEDS_FILE(requests);
  BASED_NEEDS_FILE(test::data_set(data));
  const std::unique_ptr<EvalTask> task = find_eval_task(name).make({.data = test::data_set(""), .shots = shots});
  std::vector<EvalDocument> documents;
  std::vector<Json> measured;
  std::ifstream lines(requests);
  const Json metrics = parse_json(read_file(test::golden("eval/" + folder + "/metrics.json")), "metrics.json");
  for (std::string line; std::getline(lines, line);) {
    SCOPED_TRACE(folder + " " + std::to_string(documents.size()));
    const Json expected = parse_json(line, requests);
    documents.push_back(task->documents(expected["doc"].get<int64_t>(), 1).at(0));
    EXPECT_EQ(documents.back().source, expected["source"]);
    EXPECT_EQ(Json(documents.back().few_shot), expected.value("fewshot", Json::array()));
    EXPECT_EQ(documents.back().gold, expected.value("gold", Json()));
    measured.push_back(task->measure(documents.back(), compare_requests(documents.back(), expected)));
    Json result = metrics["per_document"][documents.size() - 1];
    result.erase("doc");
    expect_same(measured.back(), result);
  }
  ASSERT_FALSE(measured.empty());
  const EvalFigures figures = task->aggregate(documents, measured);
  expect_figures(figures.metrics, metrics["aggregate"]);
  expect_figures(figures.further, metrics.value("further", Json::object()));
}

TEST(TaskGoldens, Lambada) { compare_task("lambada_openai", "lambada_openai", "lambada/lambada_test.jsonl"); }
TEST(TaskGoldens, Hellaswag) { compare_task("hellaswag", "hellaswag", "hellaswag/hellaswag_val.jsonl"); }
TEST(TaskGoldens, Piqa) { compare_task("piqa", "piqa", "piqa/valid.jsonl"); }
TEST(TaskGoldens, ArcEasy) { compare_task("arc_easy", "arc_easy", "commonsense-llm-adapters"); }
TEST(TaskGoldens, ArcChallenge) { compare_task("arc_challenge", "arc_challenge", "commonsense-llm-adapters"); }
TEST(TaskGoldens, Openbookqa) { compare_task("openbookqa", "openbookqa", "commonsense-llm-adapters"); }
TEST(TaskGoldens, SocialIqa) { compare_task("social_iqa", "social_iqa", "commonsense-llm-adapters"); }
TEST(TaskGoldens, Winogrande) { compare_task("winogrande", "winogrande", "winogrande/dev.jsonl"); }
TEST(TaskGoldens, Wikitext) {
  compare_task("wikitext", "wikitext_256", "wikitext-2/wiki.test.raw");
  compare_task("wikitext", "wikitext_2048", "wikitext-2/wiki.test.raw");
}

void compare_superglue(const std::string& task) {
  for (const int64_t shots : {0, 1, 5}) compare_task(task, task + "_" + std::to_string(shots) + "shot", "superglue", shots);
}

TEST(TaskGoldens, Boolq) { compare_superglue("boolq"); }
TEST(TaskGoldens, Cb) { compare_superglue("cb"); }
TEST(TaskGoldens, Copa) { compare_superglue("copa"); }
TEST(TaskGoldens, Multirc) { compare_superglue("multirc"); }
TEST(TaskGoldens, Record) { compare_superglue("record"); }
TEST(TaskGoldens, RecordVersion1) { compare_task("record_v1", "record_v1_0shot", "superglue"); }
TEST(TaskGoldens, Rte) { compare_superglue("rte"); }
TEST(TaskGoldens, Wic) { compare_superglue("wic"); }
TEST(TaskGoldens, Wsc) { compare_superglue("wsc"); }

// The cases of one function, or an empty list if the file is missing.
Json cases_of(const std::string& function) {
  const std::string path = test::golden("eval/cases/cases.json");
  return std::filesystem::exists(path) ? parse_json(read_file(path), path).at(function) : Json::array();
}

#define BASED_NEEDS_CASES(cases) \
  if ((cases).empty()) GTEST_SKIP() << "needs eval/cases/cases.json"

TEST(TaskCases, MultipleChoice) {
  const Json cases = cases_of("multiple_choice");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    std::vector<EvalAnswer> answers;
    for (size_t i = 0; i < c["lls"].size(); ++i)
      answers.push_back({.log_likelihood = c["lls"][i].get<double>(), .greedy = c["greedy"][i].get<bool>()});
    Json measured = measure_choices(c["choices"].get<std::vector<std::string>>(), c["gold"].get<int64_t>(), answers,
                                    {"acc", "acc_norm", "acc_bytes", "exact_match"});
    measured.erase("further");
    expect_same(measured, c["result"]);
  }
}

TEST(TaskCases, F1OfClasses) {
  const Json cases = cases_of("cb_f1");
  BASED_NEEDS_CASES(cases);
  const auto pairs = [](const Json& c) { return c["gold_pred"].get<std::vector<GoldAndPrediction>>(); };
  for (const Json& c : cases) expect_close(macro_f1(pairs(c), 3), c["value"].get<double>());
  for (const Json& c : cases_of("f1_mcc")) expect_close(class_f1(pairs(c), 1), c["f1"].get<double>());
}

TEST(TaskCases, MeansAndBootstrap) {
  const Json cases = cases_of("aggregate");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    const auto items = c["items"].get<std::vector<double>>(), zero_one = c["zero_one"].get<std::vector<double>>();
    expect_close(mean(items), c["mean"].get<double>());
    expect_close(mean_standard_error(items).value(), c["mean_stderr"].get<double>());
    expect_close(perplexity_of(items), c["perplexity"].get<double>());
    expect_close(bootstrap_standard_error(items, perplexity_of, c["bootstrap_iters"].get<int64_t>()).value(),
                 c["perplexity_stderr"].get<double>());
    expect_close(mean(zero_one), c["zero_one_mean"].get<double>());
    expect_close(mean_standard_error(zero_one).value(), c["zero_one_stderr"].get<double>());
  }
}

TEST(TaskCases, WeightedPerplexities) {
  const Json cases = cases_of("weighted");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    std::vector<WeightedLikelihood> documents;
    for (const Json& pair : c["ll_weight"]) documents.push_back({pair[0].get<double>(), pair[1].get<int64_t>()});
    expect_close(weighted_perplexity(documents), c["weighted_perplexity"].get<double>());
    expect_close(bits_per_byte(documents), c["bits_per_byte"].get<double>());
  }
}

TEST(TaskCases, Groups) {
  const Json cases = cases_of("group");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    std::vector<SizedFigure> sized;
    std::vector<EvalFigure> figures;
    for (size_t i = 0; i < c["sizes"].size(); ++i) {
      sized.push_back({{c["metrics"][i].get<double>(), c["stderrs"][i].get<double>()}, c["sizes"][i].get<int64_t>()});
      figures.push_back(sized.back().figure);
    }
    expect_close(pooled_average(sized).value, c["weighted"].get<double>());
    expect_close(pooled_average(sized).standard_error.value(), c["pooled_stderr"].get<double>());
    expect_close(unweighted_average(figures).value, c["unweighted"].get<double>());
  }
}

TEST(TaskCases, Squad) {
  const Json cases = cases_of("squad");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    const auto gold = c["gold"].get<std::string>(), prediction = c["pred"].get<std::string>();
    EXPECT_EQ(squad_exact(prediction, gold), c["exact"] == 1) << c;
    expect_close(squad_f1(prediction, gold), c["f1"].get<double>());
  }
}

TEST(TaskCases, PythonRandom) {
  const Json cases = cases_of("random");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    PythonRandom random(c["seed"].get<uint32_t>());
    for (const Json& value : c["random"]) EXPECT_EQ(random.random(), value.get<double>());
  }
  for (const Json& c : cases_of("random_choices")) {
    PythonRandom random(c["seed"].get<uint32_t>());
    for (const Json& draw : c["draws"]) {
      for (const Json& index : draw) EXPECT_EQ(std::floor(random.random() * c["n"].get<double>()), index.get<double>());
    }
  }
}

TEST(TaskCases, Hellaswag) {
  const Json cases = cases_of("hellaswag");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    const auto text = [&c](const char* key) { return c[key].get<std::string>(); };
    EXPECT_EQ(hellaswag_context(text("activity_label"), text("ctx_a"), text("ctx_b")), text("query"));
    for (size_t i = 0; i < c["endings"].size(); ++i) EXPECT_EQ(hellaswag_preprocessed(c["endings"][i].get<std::string>()), c["choices"][i]);
  }
}

TEST(TaskCases, Wikitext) {
  const Json cases = cases_of("wikitext");
  BASED_NEEDS_CASES(cases);
  for (const Json& c : cases) {
    const auto page = c["page"].get<std::string>();
    EXPECT_EQ(wikitext_detokenized(page), c["target"].get<std::string>());
    EXPECT_EQ(count_split_pieces(page), c["words"].get<int64_t>());
  }
}

}  // namespace task_goldens_test
}  // namespace based
