// What is kept of a run, and what is not taken for it.
#include "based/experiments/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/experiments/report.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace {

using ::testing::HasSubstr;

const std::string recall = R"(
kind = "recall"
[task]
vocab_size = 32
train = [{length = 16, pairs = 2, examples = 8}]
test = [{length = 16, pairs = 2, examples = 40}, {length = 24, pairs = 2, examples = 20}]
[training]
batch = 8
epochs = 2
seeds = [3]
[model]
d_model = 16
mlp = "none"
layers = ["base_conv", "base_conv"]
[[series]]
name = "one"
)";

const std::string index_problem = R"(
kind = "index"
[task]
bits = 4
train = [{told = 1, examples = 8}]
test = 8
bits_each = [32, 2]
[training]
batch = 8
seeds = [3]
[model]
d_model = 16
mlp = "none"
layers = ["base_conv"]
[[series]]
name = "one"
)";

// Every place of a JSON document, its inner ones before what they are in.
void collect(const Json& json, const Json::json_pointer& at, std::vector<Json::json_pointer>& places) {
  if (json.is_object())
    for (const auto& [key, value] : json.items()) collect(value, at / key, places);
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i) collect(json[i], at / i, places);
  if (!at.empty()) places.push_back(at);
}

class KeptResult : public testing::TestWithParam<const char*> {
 protected:
  KeptResult() : file_(read(GetParam() == std::string("recall") ? recall : index_problem)), results_(folder_.file("results")) {
    results_.make();
    const PlannedRun& planned = file_.runs()[0];
    StoredRun run;
    run.key = run_key(*file_.kind, planned, torch::kCPU);
    run.kind = file_.kind->name, run.series = "one", run.device = "cpu";
    run.learning_rate = planned.rate->learning_rate, run.seed = planned.seed, run.seconds = 1.5;
    run.config = config_of(planned), run.versions = planned.rate->versions;
    run.outcome = *file_.experiment->run(0, *file_.experiment->load(torch::kCPU), {});
    results_.write(run);
    path_ = results_.file(run.key);
    whole_ = parse_json(read_file(path_), path_);
  }

  ExperimentFile read(const std::string& text) const {
    write_file_atomic(folder_.file("e.toml"), text);
    return read_experiment(folder_.file("e.toml"), "", {});
  }
  // The warning where what is kept is not taken; "" where it is.
  std::string damage(const Json& changed) const {
    write_file_atomic(path_, dump_json(changed));
    testing::internal::CaptureStderr();
    const auto stored = results_.read(file_, 0, torch::kCPU, false);
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_EQ(stored.has_value(), warning.empty()) << warning;
    return warning;
  }
  std::string damage(const char* place, const Json& value) const {
    Json changed = whole_;
    changed[Json::json_pointer(place)] = value;
    return damage(changed);
  }

  const TemporaryFolder folder_;
  const ExperimentFile file_;
  ResultsFolder results_;
  std::string path_;
  Json whole_;
};

TEST_P(KeptResult, IsTakenAsItWasWritten) {
  EXPECT_EQ(damage(whole_), "");
  EXPECT_EQ(damage("/series", "another name"), "") << "names are no part of the key";
  Json older = whole_;
  older["outcome"].erase("test_hashes");
  EXPECT_EQ(damage(older), "") << "older programs did not write them";
}

// Each field, each entry of each list: gone, null, of another type, or a number that cannot be.
TEST_P(KeptResult, IsDamagedWhereAnyFieldIsNotTheRuns) {
  std::vector<Json::json_pointer> places;
  collect(whole_, Json::json_pointer(), places);
  EXPECT_GT(places.size(), 40U);
  size_t tried = 0;
  for (const Json::json_pointer& place : places) {
    const Json before = whole_[place];
    const std::string name = place.to_string();
    const bool is_name = name == "/series" || name == "/label", may_lack = name == "/outcome/test_hashes";
    std::vector<Json> values{nullptr, 1e300, -1, true, "x", Json::array(), Json::object(), Json::array({1e300}), Json::object({{"x", 1}})};
    for (const Json& value : values) {
      if (value == before || (is_name && value.is_string())) continue;
      Json changed = whole_;
      changed[place] = value;
      EXPECT_NE(damage(changed), "") << name << " = " << dump_json(value);
      ++tried;
    }
    Json without = whole_;
    Json& parent = without[place.parent_pointer()];
    if (parent.is_array()) {
      parent.erase(std::stoul(place.back()));
    } else {
      parent.erase(place.back());
    }
    EXPECT_EQ(damage(without) == "", may_lack) << name << " is absent";
  }
  EXPECT_GT(tried, 300U);
}

TEST_P(KeptResult, TheDamageIsNamed) {
  const std::string outcome = path_ + ": outcome: ";
  EXPECT_THAT(damage("/outcome", Json::object()),
              HasSubstr(path_ + ": it has no outcome: the file is damaged; its run is counted as missing"));
  EXPECT_THAT(damage("/outcome", nullptr), HasSubstr(path_ + ": it has no outcome"));
  EXPECT_THAT(damage("/outcome/accuracy", 1e300), HasSubstr(outcome + "accuracy is 1e+300, which is not from 0.0 to 1.0"));
  EXPECT_THAT(damage("/outcome/state_bytes", -5), HasSubstr(outcome + "state_bytes is -5.0, which is not from 1"));
  EXPECT_THAT(damage("/outcome/parameters", 5), HasSubstr(outcome + "parameters is 5, but the model has "));
  EXPECT_THAT(damage("/outcome/segments", "x"), HasSubstr("'segments' must be a list, not the string 'x'"));
  EXPECT_THAT(damage("/outcome/data_hash", "abc"), HasSubstr(outcome + "data_hash is 'abc', which is no hash of 32 digits"));
  EXPECT_THAT(damage("/failed", "a reason"), HasSubstr(path_ + ": it has both an outcome and a reason"));
  EXPECT_THAT(damage("/seconds", -1), HasSubstr(path_ + ": seconds is -1.0, which is not from 0.0"));
  EXPECT_THAT(damage("/seed", 4), HasSubstr(path_ + ": seed is '4', but the run has '3'"));
  Json without = whole_;
  without["outcome"].erase("loss");
  EXPECT_THAT(damage(without), HasSubstr(outcome + "it has no 'loss'"));
}

TEST_P(KeptResult, ThatIsDamagedIsCountedAsMissingAndIsNotDrawn) {
  for (const Json& outcome : {Json(), Json::object(), Json(7), Json("x")}) {
    damage("/outcome", outcome);
    const Report report = make_report(file_, results_);
    EXPECT_EQ(report.points[0].done, 0);
    EXPECT_THAT(report_lines(file_, report).back(), HasSubstr("0 of 1 runs are done, 0 failed, 1 missing"));
    EXPECT_TRUE(file_.experiment->figures(report.points).empty());
    EXPECT_THAT(file_.experiment->table(report.points), HasSubstr("| one |  | - | "));
  }
  damage("/outcome/state_bytes", "x");
  EXPECT_FALSE(results_.read(file_, 0, torch::kCPU, true));
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged"));
}

TEST_P(KeptResult, OfARunThatFailedHasNoFigures) {
  Json failed = whole_;
  failed["outcome"] = nullptr;
  failed["failed"] = "it diverged";
  EXPECT_EQ(damage(failed), "");
  failed["failed"] = 5;
  EXPECT_NE(damage(failed), "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, KeptResult, ::testing::Values("recall", "index"), [](const auto& kind) { return std::string(kind.param); });

TEST(ResultsFolder, ListsTheRunsThatHaveAFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(ResultsFolder(folder.file("absent")).keys().empty());
  for (const char* name : {"a.json", "b.json", "b.claim", "c.json.damaged"}) write_file_atomic(folder.file(name), "");
  EXPECT_THAT(ResultsFolder(folder.path().string()).keys(), testing::UnorderedElementsAre("a", "b"));
  EXPECT_THAT(message_of<Error>([&] { ResultsFolder(folder.file("a.json")).keys(); }),
              HasSubstr("a.json: the results there cannot be listed: Not a directory"));
}

}  // namespace
}  // namespace based
