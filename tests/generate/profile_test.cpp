// The phases of generation in a profile.
#include "tests/core/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/core/profile.h"
#include "based/generate/engine.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/recorded_on_cpu.h"

namespace based {
namespace generate_profile_test {

using ::testing::Contains;
using ::testing::IsSupersetOf;

std::vector<int64_t> generated(LanguageModel& model) {
  Engine engine(model, {});
  SequenceOptions options;
  options.max_tokens = 3;
  const int64_t id = engine.add({1, 2, 3, 4, 5}, options);
  while (!engine.idle()) engine.step();
  return engine.text(id);
}

TEST(GenerateProfile, APromptAndThreeTokensHaveTheirPhasesAndLayers) {
  const TemporaryFolder folder;
  const std::string path = folder.file("profile.json");
  const auto model = make_model(find_preset("based-tiny"), 3);
  model->eval();
  const std::vector<int64_t> without = generated(*model);
  ProfileSession session(path);
  const std::vector<int64_t> with = generated(*model);
  session.finish();
  EXPECT_EQ(with, without);
  const ProfileFile file(path);
  const std::vector<std::string> paths = file.paths();
  EXPECT_EQ(std::count(paths.begin(), paths.end(), "prefill"), 1);
  for (const char* each_step : {"step", "step/sample", "step/head", "step/layers.2/mlp", "wait for tokens"})
    EXPECT_EQ(std::count(paths.begin(), paths.end(), each_step), 3) << each_step;
  EXPECT_THAT(paths, IsSupersetOf({"prefill/layers.0/norm1", "prefill/layers.2/mlp"}));
  const std::vector<Json> events = file.events();
  const auto prefill = std::find_if(events.begin(), events.end(), [](const Json& event) { return event.at("name") == "prefill"; });
  ASSERT_NE(prefill, events.end());
  EXPECT_EQ(prefill->at("args"), Json({{"tokens", 4}, {"sequences", 1}}));
}

TEST(GenerateProfile, ARecordedStepIsOneRangeAndItsRecordingAnother) {
  const TemporaryFolder folder;
  const std::string path = folder.file("profile.json");
  const auto model = make_model(find_preset("based-tiny"), 3);
  model->eval();
  ProfileSession session(path);
  {
    const RecordedOnCpu recorded;
    generated(*model);
  }
  session.finish();
  EXPECT_THAT(ProfileFile(path).paths(), Contains("record"));
  EXPECT_THAT(ProfileFile(path).paths(), Contains("step"));
}

// A step is recorded as a graph while the session records.
TEST(GenerateProfile, OnAGpuTheRecordedStepsGiveTheSameTokens) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TemporaryFolder folder;
  const std::string path = folder.file("profile.json");
  const auto model = make_model(find_preset("based-tiny"), 3);
  model->to(torch::Device(torch::kCUDA, 0));
  model->eval();
  const std::vector<int64_t> without = generated(*model);
  ProfileSession session(path);
  const std::vector<int64_t> with = generated(*model);
  session.finish();
  EXPECT_EQ(with, without);
  const std::vector<std::string> names = ProfileFile(path).names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "step"), 6) << "three steps on the host and on the GPU";
  EXPECT_THAT(names, Contains("record"));
}

}  // namespace generate_profile_test
}  // namespace based
