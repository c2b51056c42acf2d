// `--profile` of train and generate: the file has each layer, and the results are the same without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/small_model.h"
#include "tests/core/profile_file.h"

namespace based {
namespace profile_command_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class ProfileOption : public SmallModel {
 protected:
  static void SetUpTestSuite() {
    train_model(kTwoLayers + R"([train]
steps = 4
batch = 2
length = 16
evaluate_every = 2
evaluate_batches = 1
[checkpoint]
every = 2
[data]
bpe_vocab_size = 300
)",
                60);
  }
};

TEST_F(ProfileOption, TrainingHasItsPhasesAndTheLayersOfTheFirstStepsAndTheSameWeights) {
  const Ran ran = run("train " + shared("run.toml") + " --out " + file("m") + " --profile " + file("p.json") + " --profile-steps 2");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(read_file(file("m/model.safetensors")), read_file(shared("m/model.safetensors")));
  const ProfileFile profile(file("p.json"));
  const std::vector<std::string> paths = profile.paths();
  const auto count = [&](const std::string& path) { return std::count(paths.begin(), paths.end(), path); };
  for (const char* phase : {"step", "step/data", "step/forward", "step/backward", "step/optimizer"}) EXPECT_EQ(count(phase), 4) << phase;
  for (const char* layer : {"step/forward/layers.0/linear", "step/forward/layers.1/window", "step/backward/linear", "step/backward/window",
                            "step/forward/head", "step/backward/head"})
    EXPECT_EQ(count(layer), 2) << layer;
  EXPECT_THAT(paths, IsSupersetOf({"evaluation", "save", "write checkpoint"}));
  EXPECT_THAT(profile.names("M"), Contains("thread_name"));
}

TEST_F(ProfileOption, GenerationHasEachLayerInPrefillAndStepsAndTheSameText) {
  const std::string generate = "generate --model " + shared("m") + " --prompt 'the cat number' --max-tokens 4 --seed 5";
  const Ran plain = run(generate), profiled = run(generate + " --profile " + file("p.json"));
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(profiled.code, 0) << profiled.err;
  EXPECT_EQ(profiled.out, plain.out);
  EXPECT_THAT(profiled.err, HasSubstr(file("p.json")));
  EXPECT_THAT(ProfileFile(file("p.json")).paths(),
              IsSupersetOf({"load model", "prefill/layers.0/linear", "prefill/layers.1/window", "step/layers.0/linear",
                            "step/layers.1/window", "step/layers.1/mlp", "step/head", "step/sample", "wait for tokens", "detokenize"}));
}

TEST_F(ProfileOption, AnInterruptedTrainingWritesItsProfile) {
  const Started training({"train", shared("run.toml"), "--out", file("m"), "--profile", file("p.json"), "--set", "train.steps=1000000"},
                         "/dev/null", file("err"));
  ASSERT_TRUE(training.catches(SIGINT));
  training.signal(SIGINT);
  const int status = training.status_within(30);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << read_file(file("err"));
  EXPECT_TRUE(ProfileFile(file("p.json")).json().contains("traceEvents"));
}

TEST_F(ProfileOption, IsRefusedBeforeTheWorkWhereItCannotBeWritten) {
  for (const std::string& command : {"train " + shared("run.toml") + " --out " + file("m"),
                                     "generate --model " + shared("m") + " --prompt the", "serve --model " + shared("m") + " --port 0"}) {
    const Ran ran = run(command + " --profile " + file("none/p.json"));
    EXPECT_EQ(ran.code, 2) << command << "\n" << ran.err;
    EXPECT_THAT(ran.err, AllOf(HasSubstr("--profile " + file("none/p.json")), HasSubstr("name a file")));
  }
  EXPECT_FALSE(path_exists(file("m")));
  const Ran keys = run("train --keys --profile " + file("p.json"));
  EXPECT_EQ(keys.code, 2);
  EXPECT_THAT(keys.err, HasSubstr("--profile"));
}

}  // namespace profile_command_test
}  // namespace based
