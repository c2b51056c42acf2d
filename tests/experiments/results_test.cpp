// The stored result of a run: how it is read, refused if it is damaged, and packed.
#include "based/experiments/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/json.h"
#include "based/experiments/report.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace results_test {

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

// Every place of a JSON document, the parts of a value before the value.
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
    key_ = run.key;
    results_.write(run);
    path_ = results_.file(run.key);
    whole_ = parse_json(read_file(path_), path_);
  }

  ExperimentFile read(const std::string& text) const {
    write_file_atomic(folder_.file("e.toml"), text);
    return read_experiment(folder_.file("e.toml"), "", {});
  }
  // Writes `changed` as the run's file; the warning if it is damaged, else "".
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
  std::string key_, path_;
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

TEST_P(KeptResult, IsReadFromItsLineOnceItIsPacked) {
  const std::string before = read_file(path_);
  EXPECT_EQ(results_.pack(file_).packed, 1);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(read_file(results_.packed_file()), dump_json(whole_) + "\n");
  EXPECT_THAT(results_.keys(), testing::ElementsAre(key_));
  const auto stored = results_.read(file_, 0, torch::kCPU, false);
  ASSERT_TRUE(stored);
  EXPECT_EQ(write_config(*stored).to_json() + "\n", before) << "nothing is lost";
  EXPECT_EQ(make_report(file_, ResultsFolder(results_.folder())).points[0].done, 1);
  const PackOutcome again = results_.pack(file_);
  EXPECT_EQ(again.packed, 0);
  EXPECT_EQ(again.lines, 1);
}

TEST_P(KeptResult, ItsFileWinsOverItsLine) {
  results_.pack(file_);
  EXPECT_EQ(damage("/seconds", 7.5), "");
  EXPECT_EQ(results_.read(file_, 0, torch::kCPU, false)->seconds, 7.5);
  // A damaged file does not hide the line.
  write_file_atomic(path_, "{");
  testing::internal::CaptureStderr();
  const auto stored = results_.read(file_, 0, torch::kCPU, false);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the file is damaged; " + results_.packed_file() + ":1 is used"));
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->seconds, 1.5);
  EXPECT_EQ(damage("/seconds", 7.5), "");
  EXPECT_EQ(results_.pack(file_).lines, 1);
  EXPECT_EQ(results_.read(file_, 0, torch::kCPU, false)->seconds, 7.5) << "packed, it replaces the line";
}

TEST_P(KeptResult, ThatIsADamagedLineIsAnErrorWithFileLineAndField) {
  results_.pack(file_);
  const std::string other = R"({"key":"0"})";  // not a planned run's
  const auto message = [&](const std::string& line) {
    write_file_atomic(results_.packed_file(), other + "\n" + line + "\n");
    return message_of<Error>([&] { results_.read(file_, 0, torch::kCPU, true); });
  };
  const auto changed = [&](const char* place, const Json& value) {
    Json json = whole_;
    json[Json::json_pointer(place)] = value;
    return message(dump_json(json));
  };
  const std::string at = results_.packed_file() + ":2: ";
  EXPECT_THAT(changed("/outcome/accuracy", 1e300), HasSubstr(at + "outcome: accuracy is 1e+300, which is not from 0.0 to 1.0"));
  EXPECT_THAT(changed("/outcome/segments", "x"),
              HasSubstr("'segments' must be a list, not the string 'x': the line is damaged; restore it"));
  EXPECT_THAT(changed("/seed", 4), HasSubstr(at + "seed is '4', but the run has '3'"));
  EXPECT_THAT(changed("/format", 2), HasSubstr(at + "was written by a later version"));
  EXPECT_THAT(changed("/key", 7), HasSubstr(at + "it has no string 'key'; restore the line, or remove it"));
  EXPECT_THAT(message(dump_json(whole_).substr(0, 200)), HasSubstr(at + "byte "));
  EXPECT_THAT(message("<<<<<<< HEAD"), HasSubstr(at + "byte 1: not valid JSON"));
  EXPECT_THAT(message(""), HasSubstr(at + "not valid JSON: the text is empty"));
  EXPECT_THAT(message(other), HasSubstr(at + "key is '0', as on line 1"));
  EXPECT_THAT(message_of<Error>([&] { ResultsFolder(results_.folder()).keys(); }), HasSubstr(at));
  message(dump_json(whole_));
  EXPECT_TRUE(results_.read(file_, 0, torch::kCPU, true)) << "a file that is replaced is read again";
}

// A kill between the new results.jsonl and the removal of the files leaves both.
TEST_P(KeptResult, IsPackedAgainAfterAKill) {
  const std::string text = read_file(path_);
  results_.pack(file_);
  write_file_atomic(path_, text);
  EXPECT_THAT(results_.keys(), testing::ElementsAre(key_));
  const PackOutcome outcome = results_.pack(file_);
  EXPECT_EQ(outcome.packed, 1);
  EXPECT_EQ(outcome.lines, 1);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_P(KeptResult, IsNotPackedWhereItIsDamagedOrARunIsUnderWay) {
  const auto message = [&] { return message_of<Error>([&] { results_.pack(file_); }); };
  Json wrong = whole_;
  wrong["outcome"]["accuracy"] = 1e300;
  write_file_atomic(path_, dump_json(wrong));
  EXPECT_THAT(message(), HasSubstr(path_ + ": outcome: accuracy is 1e+300"));
  EXPECT_THAT(message(), HasSubstr("the file is damaged; `based experiment run` does its run again. Nothing is packed"));
  wrong["format"] = 2;
  write_file_atomic(path_, dump_json(wrong));
  EXPECT_THAT(message(), HasSubstr(path_ + ": was written by a later version"));
  write_file_atomic(path_, dump_json(whole_));
  const std::string copy = results_.file("another name");
  write_file_atomic(copy, dump_json(whole_));
  EXPECT_THAT(message(), HasSubstr(copy + ": key is '" + key_ + "', not the file's name"));
  std::filesystem::remove(copy);
  {
    LockFile claim(results_.claim("some run"));
    ASSERT_EQ(claim.try_take(), LockFile::Taken::yes);
    EXPECT_THAT(message(), HasSubstr(results_.folder() + ": a run is under way there (some run.claim is locked)"));
  }
  EXPECT_FALSE(std::filesystem::exists(results_.packed_file()));
  EXPECT_EQ(results_.pack(file_).packed, 1);
}

TEST_P(KeptResult, OfAnotherScaleIsPackedToo) {
  Json other = whole_;
  other["key"] = "0a";
  write_file_atomic(results_.file("0a"), dump_json(other));
  EXPECT_EQ(results_.pack(file_).packed, 2);
  const std::string text = read_file(results_.packed_file());
  const size_t first = text.find("\"0a\""), second = text.find("\"" + key_ + "\"");
  EXPECT_EQ(first < second, std::string("0a") < key_) << "lines are sorted by key";
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

}  // namespace results_test
}  // namespace based
