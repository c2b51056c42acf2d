// Golden files of DNA.
#include "based/eval/dna_golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace dna_golden_test {

using ::testing::HasSubstr;

std::string write_golden(const TemporaryFolder& folder, const std::string& content) {
  std::ofstream(folder.file("case.json")) << content;
  return folder.file("case.json");
}

class DnaGoldens : public ::testing::TestWithParam<const char*> {};

TEST_P(DnaGoldens, Agree) {
  const std::string path = test::golden(std::string("dna/") + GetParam());
  BASED_NEEDS_FILE(path);
  ASSERT_TRUE(is_dna_golden(path));
  const GoldenResult result = check_dna_golden(path);
  EXPECT_TRUE(result.pass) << result.worst << " " << result.output_error;
}

INSTANTIATE_TEST_SUITE_P(Files, DnaGoldens, ::testing::Values("tokens.json", "intervals.json", "metrics.json"),
                         [](const auto& file) { return std::string(file.param).substr(0, std::string(file.param).find('.')); });

TEST(DnaGolden, NamesTheFirstValueThatDiffers) {
  const TemporaryFolder folder;
  const auto worst = [&](const std::string& content) {
    const GoldenResult result = check_dna_golden(write_golden(folder, content));
    return result.pass ? "" : result.worst;
  };
  EXPECT_EQ(worst(R"({"cases": [{"sequence": "ACn", "length": 4, "letters": [7, 8, 11],
                      "upper": {"ids": [4, 7, 8, 4, 1], "labels": [7, 8, -100, 1]}}]})"),
            "");
  EXPECT_THAT(worst(R"({"cases": [{"sequence": "ACn", "length": 4, "letters": [7, 8, 6]}]})"), HasSubstr("cases[0]: 'letters'"));
  EXPECT_THAT(worst(R"({"cases": [{"sequence": "A", "length": 2, "letters": [7], "upper": {"labels": [4, 7, 1]}}]})"),
              HasSubstr("'upper': 'labels'"));
  EXPECT_THAT(worst(R"({"cases": [{"form": "hyenadna", "chromosome": 9, "start": 0, "end": 4, "length": 3, "expected": [0, 4]}]})"),
              HasSubstr("'expected'"));
  EXPECT_THAT(worst(R"({"cases": [{"labels": [0, 1], "predictions": [0, 1], "accuracy": 1, "mcc": 0.9}]})"), HasSubstr("'mcc'"));
}

TEST(DnaGolden, RefusesDamagedFiles) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& content) {
    const std::string path = write_golden(folder, content);
    return message_of<Error>([&] { check_dna_golden(path); });
  };
  EXPECT_THAT(refusal(R"({"cases": []})"), HasSubstr("case.json: 'cases' must be a list"));
  EXPECT_THAT(refusal(R"({"cases": [{"letters": [7], "length": 1}]})"), HasSubstr("case.json: cases[0]: needs 'sequence'"));
  EXPECT_THAT(refusal(R"({"cases": [{"letters": "A", "sequence": "A", "length": 1}]})"), HasSubstr("'letters' must be a list"));
  EXPECT_THAT(refusal(R"({"cases": [{"form": "x", "chromosome": 9, "start": 0, "length": 3, "expected": [0, 3]}]})"),
              HasSubstr("cases[0]: the form of the rows must be"));
  EXPECT_THAT(refusal(R"({"cases": [{"labels": [0], "predictions": [0, 1]}]})"), HasSubstr("cases[0]: 'predictions' must be"));
  EXPECT_FALSE(is_dna_golden(write_golden(folder, R"({"windows": []})")));
  EXPECT_FALSE(is_dna_golden(write_golden(folder, "{")));
}

}  // namespace dna_golden_test
}  // namespace based
