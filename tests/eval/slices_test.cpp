// Sums by slice and source, the file of predicted tokens, and golden files of slices.
#include "based/eval/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "based/core/safetensors.h"
#include "based/eval/slices_golden.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace slices_eval_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two windows of the same pairs (1, 2) and (2, 1), in documents 0, 1 and 2. The pair (1, 2) is frequent in training.
class SlicesOfWindows : public testing::Test {
 protected:
  SlicesOfWindows() {
    slices_.collect(first_);
    slices_.collect(second_);
    slices_.add_count(1, 2, 9);
    slices_.add_count(2, 1, 3);
  }
  ScoredTokens first() const { return {first_, first_nats_, first_documents_}; }
  ScoredTokens second() const { return {second_, second_nats_, second_documents_}; }

  const std::vector<int32_t> first_tokens_{1, 2, 1, 2}, first_next_{2, 1, 2, 1}, first_documents_{0, 0, 1, 1};
  const std::vector<int32_t> second_tokens_{1, 2, 1, 2}, second_next_{2, kNoLabel, 2, 1}, second_documents_{1, 2, 2, 2};
  const std::vector<float> first_nats_{1, 2, 4, 8}, second_nats_{16, 0, 32, 64};
  const TokenPairs first_{first_tokens_, first_next_, {}}, second_{second_tokens_, second_next_, {}};
  Slices slices_;
};

TEST_F(SlicesOfWindows, AreSummedByThresholdAndSource) {
  ScoreSums sums(&slices_, {2, 5, 1250}, {"books", "", "books"});
  EXPECT_THAT(sums.add(first()), ElementsAre(kNewPair, kNewPair, 9, 3));
  EXPECT_THAT(sums.add(second()), ElementsAre(kNewPair, kNewPair, 9, kNewPair));
  ASSERT_EQ(sums.figures().size(), 3U);
  for (const SliceFigures& each : sums.figures()) {
    EXPECT_EQ(each.all.tokens, 7);
    EXPECT_EQ(each.all.nats, 127);
    EXPECT_EQ(each.ar.nats + each.other.nats, 127);
  }
  EXPECT_EQ(sums.figures()[0].ar.tokens, 0);
  EXPECT_EQ(sums.figures()[1].ar.nats, 8);
  EXPECT_EQ(sums.figures()[2].ar.nats, 4 + 8 + 32);
  ASSERT_EQ(sums.sources().size(), 2U);
  EXPECT_EQ(sums.sources().at("books")[2].ar.nats, 32);
  EXPECT_EQ(sums.sources().at("books")[2].all.nats, 1 + 2 + 32 + 64);
  EXPECT_EQ(sums.sources().at("")[1].ar.nats, 8);
  EXPECT_EQ(sums.sources().at("")[1].all.nats, 4 + 8 + 16);

  const Json json = slice_json(sums.figures()[0]);
  EXPECT_EQ(json["threshold"], 2);
  EXPECT_EQ(json["ar_share"], 0);
  EXPECT_TRUE(json["ar"]["perplexity"].is_null());
  EXPECT_DOUBLE_EQ(json["other"]["perplexity"].get<double>(), std::exp(127.0 / 7));
}

TEST_F(SlicesOfWindows, AreNotNeededForASum) {
  ScoreSums sums(nullptr, {});
  EXPECT_TRUE(sums.add(first()).empty());
  ASSERT_EQ(sums.figures().size(), 1U);
  EXPECT_EQ(sums.figures()[0].all.nats, 15);
  EXPECT_EQ(sums.figures()[0].ar.tokens, 0);
  EXPECT_TRUE(sums.sources().empty());
}

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const TensorView& view = file.at(name);
  std::vector<T> all(static_cast<size_t>(view.shape.at(0)));
  EXPECT_EQ(view.bytes.size(), all.size() * sizeof(T)) << name;
  std::memcpy(all.data(), view.bytes.data(), view.bytes.size());
  return all;
}

TEST_F(SlicesOfWindows, AreWrittenTokenByToken) {
  const TemporaryFolder folder;
  TokenTable table(7, true);
  EXPECT_EQ(table.set(4, second(), slices_.training_counts(second_)), 7);  // in any order; one of four has no label
  EXPECT_EQ(table.set(0, first(), slices_.training_counts(first_)), 4);
  table.write(folder.file("tokens.safetensors"), 5);
  const SafetensorsFile file(folder.file("tokens.safetensors"));
  EXPECT_THAT(values<int32_t>(file, "id"), ElementsAre(2, 1, 2, 1, 2, 2, 1));
  EXPECT_THAT(values<float>(file, "nats"), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(values<int32_t>(file, "document"), ElementsAre(0, 0, 1, 1, 1, 2, 2));
  EXPECT_THAT(values<uint8_t>(file, "slice"), ElementsAre(0, 0, 0, 1, 0, 0, 0));
  EXPECT_THAT(values<int64_t>(file, "training_count"), ElementsAre(kNewPair, kNewPair, 9, 3, kNewPair, 9, kNewPair));
  EXPECT_EQ(file.metadata_at("threshold"), "5");

  TokenTable plain(4, false);
  plain.set(0, first(), {});
  plain.write(folder.file("plain.safetensors"), 0);
  EXPECT_EQ(SafetensorsFile(folder.file("plain.safetensors")).tensors().size(), 3U);
}

// Pairs of two contexts, one of which is counted twice in training.
class SlicesGolden : public testing::Test {
 protected:
  GoldenResult check() const {
    write_file_atomic(path(), dump_json(golden_));
    return check_slices_golden(path());
  }
  std::string path() const { return folder_.file("slices.json"); }
  void expect_failure(const std::string& worst) const {
    const GoldenResult result = check();
    EXPECT_FALSE(result.pass);
    EXPECT_THAT(result.worst, HasSubstr(worst));
  }
  void expect_refused(const std::string& says) const {
    EXPECT_THAT(message_of<Error>([&] { check(); }), HasSubstr(says));
  }

  TemporaryFolder folder_;
  Json golden_ = parse_json(R"({
    "name": "own", "length": 7, "threshold": 2, "train": [1, 2, 1, 2, 5, 3, 3, 3, 3, 3],
    "train_bigrams": [[1, 2, 2], [2, 1, 1], [2, 5, 1], [5, 3, 1], [3, 3, 4]],
    "windows": [[1, 2, 1, 2, 1, 2, 3, 3], [3, 3, 3, 1, 2, 1, 2, 4]],
    "context_starts": [[0, 3], [0]],
    "labels": [[2, 1, -100, 1, 2, 3, 3], [3, 3, 1, 2, 1, 2, 4]],
    "nats": [[1, 1, 1, 1, 1, 1, 1], [1, 8, 1, 1, 1, 3, 1]],
    "expected": {"mask": [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0]],
      "all": {"tokens": 13, "nats": 22, "perplexity": 5.432001640742895},
      "ar": {"tokens": 1, "nats": 3, "perplexity": 20.085536923187668},
      "other": {"tokens": 12, "nats": 19, "perplexity": 4.871165999245474}, "ar_share": 0.07692307692307693}})",
                            "the golden");
};

TEST_F(SlicesGolden, Agrees) {
  EXPECT_TRUE(is_slices_golden(path()));
  const GoldenResult result = check();
  EXPECT_TRUE(result.pass) << result.worst << " " << result.output_error;
  EXPECT_LT(result.output_error, 1e-12);
  for (const char* one : {"train", "train_bigrams"}) {  // either is enough
    Json kept = golden_[one];
    golden_.erase(one);
    EXPECT_TRUE(check().pass) << one;
    golden_[one] = kept;
  }
}

TEST_F(SlicesGolden, OfAnEmptySliceHasNoPerplexity) {
  golden_["train_bigrams"][0][2] = 3;
  golden_.erase("train");
  Json& expected = golden_["expected"];
  expected["mask"][1][5] = 0;
  expected["ar"] = {{"tokens", 0}, {"nats", 0}, {"perplexity", nullptr}};
  expected["other"] = expected["all"];
  expected["ar_share"] = 0;
  EXPECT_TRUE(check().pass);
  expected["ar"]["perplexity"] = 1;
  expect_failure("'ar': 'perplexity'");
}

TEST_F(SlicesGolden, FailsWhereAnythingDiffers) {
  const Json right = golden_;
  const auto with = [&](const char* pointer, const Json& value) { golden_ = right, golden_[Json::json_pointer(pointer)] = value; };
  with("/expected/mask/0/4", 1), expect_failure("'mask'[0][4]");
  with("/expected/ar/nats", 3.0009765625), expect_failure("'ar': 'nats'");
  with("/expected/all/tokens", 14), expect_failure("'all': 'tokens'");
  with("/expected/other/perplexity", 4.8711), expect_failure("'other': 'perplexity'");
  with("/expected/ar_share", 0.0769230), expect_failure("'ar_share'");
  with("/threshold", 1), expect_failure("'mask'[1][5]");
  with("/threshold", 4), expect_failure("'mask'[1][1]");
  with("/context_starts/0", {0}), expect_failure("'mask'[0][3]");
  with("/train_bigrams/0/2", 1), expect_failure("counts of 'train'");
}

TEST_F(SlicesGolden, ThatIsDamagedIsRefusedByItsPlace) {
  const Json right = golden_;
  const auto with = [&](const char* pointer, const Json& value) { golden_ = right, golden_[Json::json_pointer(pointer)] = value; };
  with("/windows/1/0", -1), expect_refused("slices.json: 'windows'[1][0] must be an integer from 0 to");
  with("/windows/1", {1, 2}), expect_refused("'windows'[1] must be a list of 8, has 2");
  with("/labels/0/1", 5), expect_refused("'labels'[0][1] must be the next token, 1, or -100");
  with("/nats/0/0", "x"), expect_refused("'nats'[0][0] must be a number");
  with("/context_starts/0", {3, 3}), expect_refused("'context_starts'[0][1]");
  with("/threshold", -1), expect_refused("'threshold'");
  with("/train", 7), expect_refused("'train' must be a list");
  for (const char* key : {"windows", "labels", "nats", "expected", "threshold", "length"}) {
    golden_ = right;
    golden_.erase(key);
    expect_refused(std::string("needs '") + key + "'");
  }
  golden_ = right;
  golden_.erase("train"), golden_.erase("train_bigrams");
  expect_refused("needs 'train_bigrams'");
}

TEST(SlicesGoldenCollection, Agrees) {
  BASED_NEEDS_FILE(test::golden("slices"));
  int64_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden("slices"))) {
    if (entry.path().extension() != ".json") continue;
    const GoldenResult result = check_slices_golden(entry.path().string());
    EXPECT_TRUE(result.pass) << result.file << ": " << result.worst << " " << result.output_error;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace slices_eval_test
}  // namespace based
