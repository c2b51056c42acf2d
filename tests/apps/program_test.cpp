// The program's exit codes, and the use of standard output and stderr.
#include <gtest/gtest.h>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace program_test {

TEST(Program, HelpAndVersionGoToStdoutAndSucceed) {
  for (const char* arguments : {"--help", "--version", "train --help", "generate --help", "experiment run --help", "state save --help"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << arguments;
    EXPECT_FALSE(ran.out.empty()) << arguments;
  }
  EXPECT_EQ(run("--version").out, "based " + read_file(BASED_SOURCE_DIR "/VERSION"));
}

TEST(Program, WrongUsageExitsWithTwoAndFailureWithOne) {
  for (const char* arguments : {"", "trian", "train", "train --nonsense", "generate", "bench nothing", "presets based-360n"})
    EXPECT_EQ(run(arguments).code, 2) << arguments;
  for (const char* arguments : {"generate --model /nonexistent --prompt a", "inspect /nonexistent", "state info /dev/null"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 1) << arguments;
    EXPECT_TRUE(ran.out.empty()) << arguments;
    EXPECT_NE(ran.err.find("based: "), std::string::npos) << arguments;
  }
}

TEST(Program, PresetsHaveThePapersSizes) {
  const Json json = parse_json(run("presets --json").out, "stdout");
  const std::map<std::string, double> paper{{"based-360m", 363e6}, {"based-1.4b", 1.35e9}, {"attn-360m", 360e6},
                                            {"attn-1.4b", 1.33e9}, {"mamba-360m", 358e6},  {"mamba-1.3b", 1.32e9}};
  size_t found = 0;
  for (const auto& preset : json["presets"]) {
    const auto wanted = paper.find(preset["name"].get<std::string>());
    if (wanted == paper.end()) continue;
    ++found;
    EXPECT_NEAR(preset["parameters"].get<double>(), wanted->second, 0.005 * wanted->second) << wanted->first;
  }
  EXPECT_EQ(found, paper.size());
}

TEST(Program, MixersPrintTheirBytesOfState) {
  const Json json = parse_json(run("mixers --d-model 64 --set heads=1 --set feature_dim=16 --json").out, "stdout");
  EXPECT_EQ(element_named(json["mixers"], "taylor_attention")["state_bytes"], 153 * 65 * 4);
}

// Keys of an option's table are set like other options.
TEST(Program, MixersPrintFeatureMaps) {
  const std::string projected = "mixers --d-model 64 --set heads=1 --set feature_dim=16 --set feature_map=projection";
  for (const auto& [more, features] : {std::pair{"", 128}, {" --set feature_options.width=48", 96}}) {
    const Ran ran = run(projected + more + " --json");
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(element_named(parse_json(ran.out, "stdout")["mixers"], "linear_attention")["state_bytes"], features * 65 * 4);
  }
  EXPECT_NE(run("mixers").out.find("\ncosformer: "), std::string::npos);
  EXPECT_GE(parse_json(run("mixers --json").out, "stdout")["feature_maps"].size(), 15U);
  const Ran unknown = run("mixers --set feature_map=cosfomer");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("did you mean 'cosformer'?"), std::string::npos) << unknown.err;
  EXPECT_EQ(run(projected + " --set feature_options.wdth=48").code, 2);
  EXPECT_EQ(run("mixers --set feature_dim.width=48").code, 2);
}

TEST(Program, ATrainingStepIsMeasured) {
  const Ran ran = run("bench train --quick --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = parse_json(ran.out, "stdout");
  ASSERT_EQ(json["results"].size(), 2U);
  for (const auto& result : json["results"]) {
    EXPECT_GT(result["value"].get<double>(), 0);
    EXPECT_GT(result["floor"].get<double>(), result["value"].get<double>());
    EXPECT_GT(result["error"].get<double>(), 0) << "bf16 was compared with fp32";
  }
}

TEST(Program, AMistypedKeyNamesFileLineAndTheNearestKey) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("run.toml"), "[train]\nstpes = 3\n");
  const Ran ran = run("train " + folder.file("run.toml"));
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("run.toml:2"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("steps"), std::string::npos) << ran.err;
}

}  // namespace program_test
}  // namespace based
