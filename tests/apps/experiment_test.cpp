// `based experiment` as users run it: several processes on one folder, one that was killed, files that are damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ExperimentCommand : public testing::Test {
 protected:
  ExperimentCommand() { write_config(1, 64); }

  void write_config(int epochs, int examples) {
    write_file_atomic(folder_.file("e.toml"), "kind = \"recall\"\n[task]\nvocab_size = 32\ntrain = [{length = 16, pairs = 2, examples = " +
                                                  std::to_string(examples) + "}]\n" + R"(
test = [{length = 16, pairs = 2, examples = 40}, {length = 16, pairs = 4, examples = 40}]
[training]
batch = 16
learning_rates = [1e-2, 1e-3]
epochs = )" + std::to_string(epochs) + R"(
[model]
d_model = 16
mlp = "none"
layers = ["base_conv", "mixer"]
[[series]]
name = "Based"
model.mixers.mixer = {type = "taylor_attention", heads = 1, feature_dim = [2, 4]}
)");
  }
  std::string command(const std::string& name, const std::string& options = "") const {
    return "experiment " + name + " " + folder_.file("e.toml") + " " + (name == "run" ? "--device cpu " : "") + options;
  }
  Started start() const {
    return Started({"experiment", "run", folder_.file("e.toml"), "--device", "cpu"}, folder_.file("o"), folder_.file("err"));
  }
  Json status() const { return parse_json(run(command("status", "--json")).out, "stdout")["points"]; }
  std::vector<std::string> files(const std::string& extension) const {
    std::vector<std::string> found;
    if (fs::exists(results_))
      for (const auto& entry : fs::directory_iterator(results_))
        if (entry.path().extension() == extension) found.push_back(entry.path().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  // What the kept files say, but for the time they took.
  std::vector<Json> kept() const {
    std::vector<Json> runs;
    for (const std::string& file : files(".json")) {
      runs.push_back(parse_json(read_file(file), file));
      runs.back().erase("seconds");
    }
    return runs;
  }
  void wait_for_results(size_t count) const {
    for (int i = 0; i < 60'000 && files(".json").size() < count; ++i) usleep(1000);
    ASSERT_GE(files(".json").size(), count);
  }

  TemporaryFolder folder_;
  std::string results_ = folder_.file("results");
};

TEST_F(ExperimentCommand, KeepsOneFileARunAndSkipsWhatIsFinished) {
  const Ran first = run(command("run"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("4 of 4 runs are done, 0 failed, 0 missing\n"), HasSubstr("; 0 of 4 runs were there before\n")));
  EXPECT_EQ(files(".json").size(), 4U);
  EXPECT_EQ(std::distance(fs::directory_iterator(results_), fs::directory_iterator()), 4) << "no claims are left";
  const auto before = kept();
  const auto written = fs::last_write_time(files(".json")[0]);
  const Ran again = run(command("run"));
  EXPECT_THAT(again.out, HasSubstr("; 4 of 4 runs were there before (--fresh does them again)\n"));
  EXPECT_EQ(fs::last_write_time(files(".json")[0]), written);
  const Ran fresh = run(command("run", "--fresh"));
  EXPECT_THAT(fresh.out, HasSubstr("; 0 of 4 runs were there before\n"));
  EXPECT_NE(fs::last_write_time(files(".json")[0]), written);
  EXPECT_EQ(kept(), before) << "the same numbers";
  const Ran other = run(command("run", "--set optimizer.clip=0.5"));
  EXPECT_THAT(other.out, HasSubstr("; 0 of 4 runs were there before\n"));
  EXPECT_EQ(files(".json").size(), 8U);
}

TEST_F(ExperimentCommand, StatusSaysWhatEachFinishedRunCameTo) {
  EXPECT_EQ(run(command("status")).code, 0);
  EXPECT_FALSE(fs::exists(results_)) << "asking makes nothing";
  ASSERT_EQ(run(command("run")).code, 0);
  const Json points = status();
  ASSERT_EQ(points.size(), 4U);
  for (const char* key : {"name", "label", "config", "accuracy", "segments", "learning_rate", "seed", "state_bytes", "parameters", "epochs",
                          "seconds", "device", "by_epoch", "loss", "data_hash"}) {
    EXPECT_TRUE(points[0].contains(key)) << key;
  }
  EXPECT_EQ(points[0]["name"], "Based");
  EXPECT_EQ(points[0]["label"], "feature_dim=2");
  EXPECT_EQ(points[0]["device"], "cpu");
  EXPECT_NEAR(points[0]["accuracy"].get<double>(), (points[0]["segments"][0].get<double>() + points[0]["segments"][1].get<double>()) / 2,
              1e-12);
  EXPECT_LT(points[0]["state_bytes"], points[2]["state_bytes"]);
  fs::remove(files(".json")[1]);
  EXPECT_EQ(status().size(), 3U);
  EXPECT_THAT(run(command("status")).out, HasSubstr("3 of 4 runs are done, 0 failed, 1 missing"));
}

TEST_F(ExperimentCommand, TwoProcessesShareTheWork) {
  write_config(4, 1600);
  const Started first = start(),
                second({"experiment", "run", folder_.file("e.toml"), "--device", "cpu"}, folder_.file("o2"), folder_.file("err2"));
  EXPECT_EQ(WEXITSTATUS(first.status()), 0) << read_file(folder_.file("err"));
  EXPECT_EQ(WEXITSTATUS(second.status()), 0) << read_file(folder_.file("err2"));
  EXPECT_EQ(files(".json").size(), 4U);
  EXPECT_EQ(files(".claim").size(), 0U);
  for (const char* out : {"o", "o2"}) EXPECT_THAT(read_file(folder_.file(out)), HasSubstr("4 of 4 runs are done"));
  // Each run was done once: whoever did it wrote its file, and nobody else.
  const std::string said = read_file(folder_.file("err")) + read_file(folder_.file("err2"));
  size_t done = 0;
  for (size_t at = 0; (at = said.find(": accuracy ", at)) != std::string::npos; ++at) ++done;
  EXPECT_EQ(done, 4U) << said;
}

TEST_F(ExperimentCommand, AKilledSweepGoesOn) {
  write_config(6, 1600);
  {
    const Started killed = start();
    wait_for_results(1);
    killed.signal(SIGKILL);
    killed.status();
  }
  const auto before = kept();
  ASSERT_LT(before.size(), 4U);
  const Ran ran = run(command("run"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("; " + std::to_string(before.size()) + " of 4 runs were there before"));
  EXPECT_EQ(files(".claim").size(), 0U);
}

TEST_F(ExperimentCommand, AnInterruptedSweepSaysHowFarItIs) {
  write_config(100'000, 1600);
  const Started stopped = start();
  ASSERT_TRUE(stopped.catches(SIGINT));
  stopped.signal(SIGINT);
  EXPECT_EQ(WEXITSTATUS(stopped.status()), 1);
  EXPECT_THAT(read_file(folder_.file("err")),
              HasSubstr("interrupted; 0 of 4 runs are finished and kept in " + results_ + "; the same command goes on"));
}

TEST_F(ExperimentCommand, ADamagedFileIsSetAsideAndItsRunDoneAgain) {
  ASSERT_EQ(run(command("run")).code, 0);
  const auto whole = kept();
  const std::string damaged = files(".json")[1], text = read_file(damaged);
  for (const std::string& bad : {std::string("{\"format\":1,"), std::string("7"), std::string(), text.substr(0, text.size() / 2),
                                 read_file(files(".json")[0]), std::string(text).replace(text.find("\"outcome\""), 9, "\"outcomf\"")}) {
    write_file_atomic(damaged, bad);
    const Ran asked = run(command("status"));
    EXPECT_EQ(asked.code, 0) << asked.err;
    EXPECT_THAT(asked.out, HasSubstr("3 of 4 runs are done"));
    EXPECT_THAT(asked.err, HasSubstr(damaged)) << bad;
    EXPECT_TRUE(fs::exists(damaged)) << "asking changes nothing";
    const Ran ran = run(command("run"));
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(damaged + ".damaged")) << bad;
    EXPECT_EQ(read_file(damaged + ".damaged"), bad);
    EXPECT_EQ(kept(), whole);
  }
  write_file_atomic(damaged, "{\"format\":2,\"new\":1}");
  const Ran later = run(command("run"));
  EXPECT_EQ(later.code, 1);
  EXPECT_THAT(later.err, HasSubstr(damaged + ": was written by a later version"));
  EXPECT_EQ(read_file(damaged), "{\"format\":2,\"new\":1}");
}

TEST_F(ExperimentCommand, AFailedRunIsKeptWithItsReasonAndTheOthersGoOn) {
  const std::string diverging =
      "--set training.epochs=60 --set training.learning_rates=[1e6,1e-2] --set optimizer.clip=0 --set optimizer.weight_decay=0 --set "
      "optimizer.warmup=0";
  const Ran ran = run(command("run", diverging));
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("Based feature_dim=2, learning rate 1000000.0, seed 0: failed: "),
                             HasSubstr("2 of 4 runs failed; --retry does them again")));
  EXPECT_THAT(ran.out, HasSubstr("2 of 4 runs are done, 2 failed, 0 missing"));
  EXPECT_EQ(files(".json").size(), 4U);
  const Ran again = run(command("run", diverging));
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.out, HasSubstr("; 4 of 4 runs were there before"));
  const Ran retry = run(command("run", diverging + " --retry"));
  EXPECT_EQ(retry.code, 1);
  EXPECT_THAT(retry.out, HasSubstr("; 2 of 4 runs were there before"));
}

TEST_F(ExperimentCommand, DrawsFromTheKeptFilesAlone) {
  write_config(2, 64);
  const Ran nothing = run(command("plot"));
  EXPECT_EQ(nothing.code, 1);
  EXPECT_THAT(nothing.err, HasSubstr("no run of " + folder_.file("e.toml") + " is finished"));
  ASSERT_EQ(run(command("run", "--set training.seeds=[0,1]")).code, 0);
  const Ran drawn = run(command("plot", "--set training.seeds=[0,1]"));
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  for (const char* name : {"figure.svg", "epochs.svg", "pairs.svg", "table.md"}) {
    EXPECT_THAT(drawn.out, HasSubstr(folder_.file(name)));
    EXPECT_TRUE(fs::exists(folder_.file(name))) << name;
  }
  EXPECT_THAT(read_file(folder_.file("table.md")), HasSubstr("| Based | feature_dim=4 | "));
  fs::create_directories(folder_.file("there"));
  fs::rename(results_, folder_.file("there/results"));
  EXPECT_EQ(run(command("plot", "--set training.seeds=[0,1] --out " + folder_.file("there"))).code, 0);
  EXPECT_TRUE(fs::exists(folder_.file("there/figure.svg")));
}

TEST_F(ExperimentCommand, RunsAtOnceComeToWhatRunsAloneCameTo) {
  ASSERT_EQ(run("experiment run " + folder_.file("e.toml") + " --device cpu", "OMP_NUM_THREADS=1 ").code, 0);
  const auto alone = kept();
  ASSERT_EQ(run("experiment run " + folder_.file("e.toml") + " --device cpu --fresh --runs-per-device 3", "OMP_NUM_THREADS=1 ").code, 0);
  EXPECT_EQ(kept(), alone);
}

TEST_F(ExperimentCommand, WhatCannotBeIsSaidBeforeAnythingIsDone) {
  for (const auto& [options, code, message] : std::vector<std::tuple<std::string, int, std::string>>{
           {"--set nonsense.key=1", 2, "unknown key 'nonsense'"},
           {"--scale small", 2, "has no table [scale.small]"},
           {"--device tpu", 2, "--device"},
           {"--device cuda:99", 2, "--device"},
           {"--device cpu,cpu", 2, "--device names cpu twice"},
           {"--set training.precision='\"tf32\"'", 2, "training.precision = \"tf32\" is a GPU's"},
           {"--out /dev/null/x", 1, "/dev/null/x"}}) {
    const Ran ran =
        run("experiment run " + folder_.file("e.toml") + " " + (options.starts_with("--device") ? "" : "--device cpu ") + options);
    EXPECT_EQ(ran.code, code) << options << "\n" << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(message)) << options;
    EXPECT_EQ(files(".json").size(), 0U);
  }
}

TEST_F(ExperimentCommand, AResultThatCannotBeKeptIsSaidInFull) {
  write_config(6, 1600);
  const Started running = start();
  for (int i = 0; i < 60'000 && files(".claim").empty(); ++i) usleep(1000);
  fs::rename(results_, folder_.file("gone"));
  write_file_atomic(results_, "no folder");
  EXPECT_EQ(WEXITSTATUS(running.status()), 1);
  const std::string said = read_file(folder_.file("err"));
  EXPECT_THAT(said, AllOf(HasSubstr(results_), HasSubstr("the result, which is not kept: {\"format\":1"), HasSubstr("\"accuracy\":")));
}

// The experiment's own figure again, from a model that has learnt its few training examples by heart.
TEST(MqarEval, MeasuresOnTheTestDataOfTheExperiment) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("e.toml"),
                    "kind = \"recall\"\n[task]\nvocab_size = 64\npower_a = 0.5\nrandom_fillers = false\nseed = 3\n"
                    "train = [{length = 32, pairs = 4, examples = 8}]\ntest = [{length = 32, pairs = 4, examples = 200}]\n"
                    "[training]\nbatch = 8\nepochs = 60\nlearning_rates = [0.01]\n[[series]]\nname = \"one\"\n"
                    "[series.model]\nd_model = 32\nlayers = [\"gated_conv\"]\nmlp_width = 32\nmax_positions = 32\n");
  const Ran sweep = run("experiment run " + folder.file("e.toml") + " --device cpu --save-models --json");
  ASSERT_EQ(sweep.code, 0) << sweep.err;
  const Json result = parse_json(sweep.out, "stdout")["points"][0];
  const std::string eval = "mqar eval --json --pairs 4 --examples 200 --model " + folder.file("models/") +
                           result["key"].get<std::string>() + " --seed 3 --power-a 0.5 --length ";
  const Ran same = run(eval + "32 --random-fillers false"), other = run(eval + "32 --random-fillers true");
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_DOUBLE_EQ(parse_json(same.out, "stdout")["recall"].get<double>(), result["accuracy"].get<double>());
  EXPECT_NE(parse_json(same.out, "stdout")["data_hash"], parse_json(other.out, "stdout")["data_hash"]);
  const Ran none = run(eval + "32 --examples 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--examples must be an integer from 1"));
  const Ran longer = run(eval + "64");
  EXPECT_EQ(longer.code, 2);
  EXPECT_THAT(longer.err, HasSubstr("examples of 64 tokens are more than model.max_positions = 32"));
}

}  // namespace
}  // namespace based
