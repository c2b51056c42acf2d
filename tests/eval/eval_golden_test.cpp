#include "based/eval/eval_golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace eval_golden_test {

using ::testing::HasSubstr;

TEST(EvalGolden, EveryStoredRequestAndMetricIsReproduced) {
  BASED_NEEDS_FILE(test::golden("eval"));
  for (const char* set : {"gpt2-bpe", "lambada", "hellaswag", "piqa", "commonsense-llm-adapters", "winogrande", "superglue", "wikitext-2",
                          "squad-v1.1", "swde", "text-technical-docs"})
    BASED_NEEDS_FILE(test::data_set(set));
  int compared = 0;
  for (const std::string& name : names_in(test::golden("eval"))) {
    const std::string path = test::golden("eval/" + name);
    if (!is_eval_golden(path)) continue;
    const GoldenResult result = check_eval_golden(path, {.data = test::data_set(""), .tokenizer = ""});
    EXPECT_TRUE(result.pass || !result.skipped.empty()) << path << ": " << result.output_error << " at " << result.worst;
    compared += result.skipped.empty();
  }
  EXPECT_GT(compared, 30);
}

// A few lines, with the models' real scores; a changed one is found.
TEST(EvalGolden, RequestsToStoredModelsHaveTheirScores) {
  const std::string path = test::golden("eval/tiny_models");
  BASED_NEEDS_FILE(path);
  BASED_NEEDS_FILE(test::golden("checkpoints/attn"));
  BASED_NEEDS_FILE(test::data_set("gpt2-bpe"));
  const EvalGoldenOptions options{.data = test::data_set(""), .tokenizer = ""};
  const GoldenResult result = check_eval_golden(path, options);
  EXPECT_EQ(result.skipped, "");
  EXPECT_TRUE(result.pass) << result.output_error << " at " << result.worst;

  const TemporaryFolder folder;
  make_folder(folder.file("eval/other"));
  std::string lines = read_file(path_in(path, "requests.jsonl"));
  write_file_atomic(folder.file("eval/other/requests.jsonl"), lines);
  EXPECT_NE(check_eval_golden(folder.file("eval/other"), options).skipped.find("its models are not there: "), std::string::npos);
  std::filesystem::create_directory_symlink(test::golden("checkpoints"), folder.file("checkpoints"));
  const size_t at = lines.find("\"greedy\":false");
  lines.replace(at, 14, "\"greedy\":true");
  write_file_atomic(folder.file("eval/other/requests.jsonl"), lines);
  const GoldenResult wrong = check_eval_golden(folder.file("eval/other"), options);
  EXPECT_FALSE(wrong.pass);
  EXPECT_THAT(wrong.worst, HasSubstr("requests.jsonl:1: greedy"));
}

class EvalCases : public testing::Test {
 protected:
  GoldenResult check(const std::string& json) const {
    write_file_atomic(folder_.file("cases.json"), json);
    EXPECT_TRUE(is_eval_golden(folder_.file("cases.json")));
    return check_eval_golden(folder_.file("cases.json"), {.data = folder_.file(""), .tokenizer = "bytes"});
  }
  TemporaryFolder folder_;
};

TEST_F(EvalCases, AreComparedByNameAndPlace) {
  EXPECT_TRUE(check(R"({"stop": [{"raw": "aXb", "stop": ["X"], "text": "a"}]})").pass);
  const GoldenResult wrong =
      check(R"({"rolling_empty": {"tokens": 0, "windows": []}, "stop": [{"raw": "aXb", "stop": ["X"], "text": "aX"}]})");
  EXPECT_FALSE(wrong.pass);
  EXPECT_THAT(wrong.worst, HasSubstr("cases.json: stop[0].text"));
  const GoldenResult close =
      check(R"({"weighted": [{"ll_weight": [[-2, 1]], "weighted_perplexity": 7.38905609894, "bits_per_byte": 2.8853900817779268}]})");
  EXPECT_FALSE(close.pass) << "7.38905609893065 differs by more than 1e-12";
  EXPECT_LT(close.output_error, 1e-11);
  EXPECT_TRUE(check(R"({"winogrande": [{"sentence": "A _ b.", "option1": "x", "option2": "y", "answer": "2", "gold": 1,
                        "requests": [["A x", " b."], ["A y", " b."]]}]})")
                  .pass);
}

TEST_F(EvalCases, ThatCannotBeComparedAreErrors) {
  EXPECT_THROW(check(R"({"stop": [{"raw": "a"}]})"), Error);
  EXPECT_THROW(check(R"({"stop": [{"raw": "a", "stop": []}]})"), Error) << "no result";
  EXPECT_THROW(check(R"({"stop": [], "unheard": []})"), Error);
  EXPECT_FALSE(is_eval_golden(folder_.file("missing.json")));
  write_file_atomic(folder_.file("slices.json"), R"({"windows": []})");
  EXPECT_FALSE(is_eval_golden(folder_.file("slices.json")));
}

}  // namespace eval_golden_test
}  // namespace based
