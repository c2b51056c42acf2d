// `based experiment`: several processes on one folder, a killed process, damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace experiment_test {

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
  // The content of the kept files, without the time that the runs took.
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
  // Each run was done by exactly one process, which wrote its file.
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
              HasSubstr("interrupted; 0 of 4 runs are finished and kept in " + results_ + "; the same command continues"));
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

// A result file without figures, or with figures that no run can have.
TEST_F(ExperimentCommand, AResultWithoutItsFiguresIsDamaged) {
  ASSERT_EQ(run(command("run")).code, 0);
  const auto whole = kept();
  const std::string damaged = files(".json")[1];
  const Json right = parse_json(read_file(damaged), damaged);
  for (const auto& [place, value] : std::vector<std::pair<std::string, Json>>{{"/outcome", Json::object()},
                                                                              {"/outcome", nullptr},
                                                                              {"/outcome/accuracy", nullptr},
                                                                              {"/outcome/accuracy", "0.5"},
                                                                              {"/outcome/accuracy", 1e300},
                                                                              {"/outcome/segments", Json::object()},
                                                                              {"/outcome/by_epoch/0/1", 1e300},
                                                                              {"/outcome/state_bytes", -5},
                                                                              {"/outcome/state_bytes", 1e300},
                                                                              {"/learning_rate", 1e300},
                                                                              {"/seconds", -1}}) {
    Json wrong = right;
    wrong[Json::json_pointer(place)] = value;
    const std::string bad = dump_json(wrong);
    SCOPED_TRACE(place + " = " + dump_json(value));
    write_file_atomic(damaged, bad);
    for (const char* name : {"status", "plot"}) {
      const Ran asked = run(command(name));
      EXPECT_EQ(asked.code, 0) << asked.err;
      EXPECT_THAT(asked.err, AllOf(HasSubstr(damaged), HasSubstr("the file is damaged; its run is counted as missing")));
      EXPECT_THAT(asked.out, Not(HasSubstr("nan")));
    }
    EXPECT_THAT(read_file(folder_.file("table.md")), Not(HasSubstr("nan")));
    const Ran ran = run(command("run"));
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("; 3 of 4 runs were there before"));
    EXPECT_EQ(read_file(damaged + ".damaged"), bad);
    EXPECT_EQ(kept(), whole);
  }
}

TEST_F(ExperimentCommand, PackedResultsAreFoundAsTheirFilesWere) {
  const Ran nothing = run(command("pack"));
  EXPECT_EQ(nothing.code, 0) << nothing.err;
  EXPECT_THAT(nothing.out, HasSubstr(results_ + ".jsonl: 0 results, 0 of them packed now"));
  EXPECT_FALSE(fs::exists(results_) || fs::exists(results_ + ".jsonl")) << "nothing is made";
  ASSERT_EQ(run(command("run")).code, 0);
  ASSERT_EQ(run(command("plot")).code, 0);
  const Json before = status();
  const std::string table = read_file(folder_.file("table.md"));
  const Ran packed = run(command("pack"));
  EXPECT_EQ(packed.code, 0) << packed.err;
  EXPECT_THAT(packed.out, HasSubstr(results_ + ".jsonl: 4 results, 4 of them packed now"));
  EXPECT_EQ(std::distance(fs::directory_iterator(results_), fs::directory_iterator()), 0) << "no files and no claims are left";
  EXPECT_FALSE(fs::exists(results_ + ".jsonl.lock"));
  EXPECT_EQ(status(), before);
  ASSERT_EQ(run(command("plot")).code, 0);
  EXPECT_EQ(read_file(folder_.file("table.md")), table);
  fs::remove(results_);
  const Ran again = run(command("run"));
  EXPECT_THAT(again.out, HasSubstr("in " + results_ + ".jsonl; 4 of 4 runs were there before"));
  EXPECT_FALSE(fs::exists(results_)) << "no run was left to do";
  // New runs get files of their own, and the file of a run that is done again wins over its line.
  const Ran other = run(command("run", "--set optimizer.clip=0.5"));
  EXPECT_THAT(other.out, HasSubstr("; 0 of 4 runs were there before"));
  EXPECT_EQ(files(".json").size(), 4U);
  const Ran fresh = run(command("run", "--fresh"));
  EXPECT_THAT(fresh.out, HasSubstr("in " + results_ + " and " + results_ + ".jsonl; 0 of 4 runs were there before"));
  EXPECT_EQ(files(".json").size(), 8U);
  EXPECT_THAT(run(command("pack")).out, HasSubstr(results_ + ".jsonl: 8 results, 8 of them packed now"));
  EXPECT_EQ(status().size(), 4U);
}

TEST_F(ExperimentCommand, ADamagedLineEndsTheCommandAndNamesItself) {
  ASSERT_EQ(run(command("run")).code, 0);
  ASSERT_EQ(run(command("pack")).code, 0);
  const std::string packed = results_ + ".jsonl", text = read_file(packed);
  const size_t second = text.find('\n') + 1;
  write_file_atomic(packed, text.substr(0, second) +
                                std::string(text.substr(second)).replace(text.find("\"outcome\"", second) - second, 9, "\"outcomf\""));
  for (const char* name : {"run", "status", "plot"}) {
    const Ran ran = run(command(name));
    EXPECT_EQ(ran.code, 1) << name;
    EXPECT_THAT(ran.err, AllOf(HasSubstr(packed + ":2: "), HasSubstr("outcomf"))) << name;
  }
  write_file_atomic(packed, text.substr(0, second) + "{\n");
  for (const char* name : {"run", "status", "plot"}) EXPECT_THAT(run(command(name)).err, HasSubstr(packed + ":2: byte ")) << name;
  write_file_atomic(packed, text.substr(0, second));
  EXPECT_THAT(run(command("run")).out, HasSubstr("; 1 of 4 runs were there before")) << "removed lines are runs that are missing";
}

TEST_F(ExperimentCommand, RefusesToPackWhileARunIsUnderWay) {
  ASSERT_EQ(run(command("run")).code, 0);
  write_config(100'000, 1600);
  const Started running = start();
  ASSERT_TRUE(running.catches(SIGINT));
  for (int i = 0; i < 60'000 && files(".claim").empty(); ++i) usleep(1000);
  const Ran refused = run(command("pack"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr(results_ + ": a run is under way there"));
  EXPECT_EQ(files(".json").size(), 4U);
  running.signal(SIGINT);
  EXPECT_EQ(WEXITSTATUS(running.status()), 1);
  EXPECT_THAT(run(command("pack")).out, HasSubstr("4 results, 4 of them packed now"));
}

TEST_F(ExperimentCommand, AModelThatCannotBeSavedLosesNoResult) {
  write_file_atomic(folder_.file("models"), "no folder");
  const Ran first = run(command("run", "--save-models"));
  EXPECT_EQ(first.code, 1);
  EXPECT_THAT(first.out, HasSubstr("4 of 4 runs are done, 0 failed, 0 missing"));
  EXPECT_THAT(first.err, AllOf(HasSubstr("its model is not saved, its result is kept: " + folder_.file("models/")),
                               HasSubstr("4 models could not be saved in " + folder_.file("models") +
                                         "; their results are kept, and --retry "
                                         "--save-models does these runs again"),
                               Not(HasSubstr("filesystem"))));
  const auto whole = kept();
  EXPECT_EQ(whole.size(), 4U);
  // Finished runs are not trained again unless asked for, and the program says so.
  fs::remove(folder_.file("models"));
  const Ran told = run(command("run", "--save-models"));
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.err, HasSubstr("4 of 4 finished runs have no model in " + folder_.file("models") +
                                  ", and only training makes one: --retry "
                                  "--save-models does these runs again"));
  EXPECT_FALSE(fs::exists(folder_.file("models")));
  const Ran again = run(command("run", "--save-models --retry"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("; 0 of 4 runs were there before"));
  EXPECT_EQ(kept(), whole);
  for (const Json& one : whole) EXPECT_TRUE(fs::exists(folder_.file("models/" + one["key"].get<std::string>() + "/config.json")));
  const std::string one = folder_.file("models/" + whole[2]["key"].get<std::string>());
  fs::remove_all(one);
  const Ran last = run(command("run", "--save-models --retry"));
  EXPECT_THAT(last.out, HasSubstr("; 3 of 4 runs were there before"));
  EXPECT_TRUE(fs::exists(one + "/model.safetensors"));
  const Ran silent = run(command("run", "--save-models"));
  EXPECT_EQ(silent.code, 0);
  EXPECT_THAT(silent.err, Not(HasSubstr("model")));
}

// Without this, root could write everywhere.
void as_nobody() {
  constexpr unsigned kNobody = 65534;
  if (geteuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(126);
}

TEST_F(ExperimentCommand, AFolderThatCannotBeWrittenToServesWhereNothingIsLeftToDo) {
  ASSERT_EQ(run(command("run")).code, 0);
  const std::string claim = fs::path(files(".json")[0]).replace_extension(".claim");
  write_file_atomic(claim, "1\n");  // the claim of a killed process
  const std::string out = folder_.file("o"), err = folder_.file("err"), config = folder_.file("e.toml");
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(results_, fs::perms(0555));
  const auto code_of = [&](std::vector<std::string> arguments) {
    return WEXITSTATUS(Started(std::move(arguments), out, err, as_nobody).status());
  };
  const int code = code_of({"experiment", "run", config, "--device", "cpu"});
  if (code > 125) GTEST_SKIP() << "another user cannot run the program here";
  EXPECT_EQ(code, 0) << read_file(err);
  EXPECT_THAT(read_file(out), HasSubstr("; 4 of 4 runs were there before"));
  EXPECT_EQ(code_of({"experiment", "status", config}), 0) << read_file(err);
  EXPECT_EQ(code_of({"experiment", "plot", config}), 1) << "its figures go beside the results";
  EXPECT_THAT(read_file(err),
              AllOf(HasSubstr(folder_.file("figure.svg") + ": cannot write: Permission denied"), Not(HasSubstr("filesystem"))));
  fs::permissions(folder_.path(), fs::perms(0777));
  EXPECT_EQ(code_of({"experiment", "plot", config}), 0) << read_file(err);
  EXPECT_EQ(code_of({"experiment", "run", config, "--device", "cpu", "--save-models"}), 0) << read_file(err);
  // If there are runs to do, a folder that cannot be written to is an error.
  for (const char* options : {"--fresh", "--set=optimizer.clip=0.5"}) {
    EXPECT_EQ(code_of({"experiment", "run", config, "--device", "cpu", options}), 1);
    EXPECT_THAT(read_file(err),
                AllOf(HasSubstr(results_), HasSubstr("Permission denied"), HasSubstr("--out"), Not(HasSubstr("filesystem"))));
  }
  fs::permissions(results_, fs::perms(0755));
  const std::string damaged = files(".json")[1], text = read_file(damaged);
  write_file_atomic(damaged, "{");
  fs::permissions(results_, fs::perms(0555));
  EXPECT_EQ(code_of({"experiment", "run", config, "--device", "cpu"}), 1);
  EXPECT_THAT(read_file(err), HasSubstr("the file is damaged, and cannot be renamed to " + damaged + ".damaged: Permission denied"));
  fs::permissions(results_, fs::perms(0755));
}

TEST_F(ExperimentCommand, AFileInThePlaceOfAFolderIsNamed) {
  write_file_atomic(folder_.file("file"), "");
  const std::string out_is_a_file = "--out " + folder_.file("file");
  for (const char* name : {"run", "status", "plot"}) {
    const Ran ran = run(command(name, out_is_a_file));
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, HasSubstr(folder_.file("file") + ": is a file, not a folder; --out names the folder"));
  }
  write_file_atomic(results_, "");
  for (const char* name : {"run", "status", "plot"}) {
    const Ran ran = run(command(name));
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, HasSubstr(results_ + ": is a file, not a folder; it is where results are kept"));
  }
}

TEST_F(ExperimentCommand, ALongTieIsAnError) {
  for (const std::string& tie : {"= " + std::string(30'000, 'a'), "= " + std::string(30'000, 'a') + " ?", "=" + std::string(30'000, ' ')}) {
    const Ran ran = run(command("status", "--set 'model.d_model=\"" + tie + "\"'"));
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr("model.d_model = '= "));
  }
}

TEST_F(ExperimentCommand, AnyNameIsDrawnAndWrittenIntoTheTable) {
  const std::string out = folder_.file("tab\tline\nend\x1b \"q\" 50% \\");
  const std::string options = R"(--set 'series.0.name="a|b *c* \\ `d` 50% \t\u001b é"' --out ')" + out + "'";
  ASSERT_EQ(run(command("run", options)).code, 0);
  const Ran drawn = run(command("plot", options), "GNUTERM=nonsense ");
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_TRUE(fs::exists(out + "/figure.svg"));
  EXPECT_THAT(read_file(out + "/table.md"), HasSubstr(R"(| a\|b \*c\* \\ \`d\` 50%    é | feature_dim=4 | 0.)"));
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
  ASSERT_EQ(run(command("pack")).code, 0);
  const Ran packed = run(command("run", diverging + " --retry"));
  EXPECT_THAT(packed.out, HasSubstr("; 2 of 4 runs were there before"));
  EXPECT_EQ(files(".json").size(), 2U) << "failed runs that are lines are done again, too";
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
           {"--set training.precision='\"tf32\"'", 2, "training.precision = \"tf32\" needs a GPU"},
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

// A language model's run continues from its checkpoint. The result is that of a run that was never killed.
TEST(LanguageExperimentCommand, AKilledRunContinues) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the quick brown fox jumps over the lazy dog, " + std::to_string(i % 7) + " times.\n";
  write_file_atomic(folder.file("text.txt"), text);
  write_file_atomic(folder.file("e.toml"), "kind = \"language\"\n[data]\ntrain = \"" + folder.file("text.txt") + R"("
tokenizer = "bytes"
[train]
steps = 120
batch = 4
length = 32
evaluate_every = 40
[checkpoint]
every = 40
[model]
d_model = 16
mlp_width = 16
layers = ["gated_conv", "mixer"]
[[series]]
name = "Based"
model.mixers.mixer = {type = "taylor_attention", heads = 2, feature_dim = 4}
)");
  const auto result = [&](const std::string& out) {
    const Ran ran =
        run("experiment run " + folder.file("e.toml") + " --device cpu --save-models --json --commit abc --out " + folder.file(out));
    EXPECT_EQ(ran.code, 0) << ran.err;
    Json point = parse_json(ran.out, "stdout")["points"][0];
    EXPECT_EQ(point["cost"]["commits"], Json::array({"abc"}));
    point.erase("seconds");
    point.erase("cost");
    return point;
  };
  const std::string killed = folder.file("killed"), unfinished = killed + "/unfinished";
  {
    const Started started({"experiment", "run", folder.file("e.toml"), "--device", "cpu", "--out", killed}, folder.file("o"),
                          folder.file("err"));
    const auto has_checkpoint = [&] {
      std::error_code none;
      for (const auto& entry : fs::directory_iterator(unfinished, none))
        if (fs::exists(entry.path() / "checkpoints" / "latest", none)) return true;
      return false;
    };
    for (int i = 0; i < 60'000 && !has_checkpoint(); ++i) usleep(1000);
    started.signal(SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(started.status())) << "it was not finished";
  }
  ASSERT_TRUE(fs::exists(unfinished));
  const Json continued = result("killed");
  EXPECT_FALSE(fs::exists(unfinished));
  const std::string model = killed + "/models/" + continued["key"].get<std::string>();
  const Ran generated = run("generate --model " + model + " --prompt a --max-tokens 2 --device cpu");
  EXPECT_EQ(generated.code, 0) << "the saved model has its tokenizer: " << generated.err;
  EXPECT_EQ(continued, result("whole"));
  const Ran plotted = run("experiment plot " + folder.file("e.toml") + " --out " + killed);
  EXPECT_EQ(plotted.code, 0) << plotted.err;
  for (const char* name : {"/figure.svg", "/held-out-loss.svg", "/training-loss.svg", "/table.md", "/table.tex"})
    EXPECT_TRUE(fs::exists(killed + name)) << name;
  const Ran several = run("experiment run " + folder.file("e.toml") + " --device cpu --runs-per-device 2 --out " + folder.file("several"));
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.err, HasSubstr("one run of kind = \"language\" at a time"));
}

// A saved model, which has memorized its few training examples, gives the experiment's accuracy again.
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
  EXPECT_EQ(result["test_hashes"], Json::array({parse_json(same.out, "stdout")["data_hash"]}))
      << "by which figures are known to be of the same examples";
  const Ran none = run(eval + "32 --examples 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--examples must be an integer from 1"));
  const Ran longer = run(eval + "64");
  EXPECT_EQ(longer.code, 2);
  EXPECT_THAT(longer.err, HasSubstr("examples of 64 tokens are more than model.max_positions = 32"));
}

// The kept pretraining runs of experiments/pretraining, one of which was killed and stopped.
TEST_F(ExperimentCommand, DrawsTheCurvesOfTrainingRuns) {
  const std::string runs = BASED_SOURCE_DIR "/experiments/pretraining/runs/", out = folder_.file("curves");
  const Ran drawn = run("experiment curves " + runs + "based-360m " + runs + "attention-360m --title Runs --out " + out);
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(read_file(out + "/training-loss.svg"), AllOf(HasSubstr("Runs: training loss"), HasSubstr("after a crash: 1 device"),
                                                           HasSubstr("after a stop: 2 devices"), HasSubstr("attention-360m")));
  EXPECT_THAT(read_file(out + "/held-out-loss.svg"), HasSubstr("held-out loss, nats per token"));
  EXPECT_THAT(run("experiment curves " + folder_.file("none") + " --out " + out).err, HasSubstr("none/run.json: there is no such file"));
}

}  // namespace experiment_test
}  // namespace based
