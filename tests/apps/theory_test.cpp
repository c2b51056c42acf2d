// `based theory`: the paper's constructions from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace theory_test {

using testing::HasSubstr;

TEST(TheoryCommand, ListsWhatCanBeTriedAndShown) {
  const Ran ran = run("theory list --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json list = parse_json(ran.out, "list");
  EXPECT_GT(list.size(), 15U);
  for (const char* name : {"one_hot", "mqar", "remember"}) EXPECT_THAT(run("theory list").out, HasSubstr(name));
}

TEST(TheoryCommand, PrintsWhatWasTriedBuiltAndClaimed) {
  const Ran ran = run("theory verify shift_down one_hot --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json report = parse_json(ran.out, "report");
  EXPECT_TRUE(report["pass"].get<bool>());
  const Json &shift = report["statements"][0], &hot = report["statements"][1];
  EXPECT_EQ(shift["verdict"], "holds");
  EXPECT_EQ(shift["layers_built"], Json({1, 1}));
  EXPECT_EQ(shift["layers_claimed"], "1");
  EXPECT_GT(shift["inputs"].get<int64_t>(), 1000);
  EXPECT_EQ(hot["verdict"], "holds as repaired");
  EXPECT_GE(hot["corrections"].size(), 3U);
  EXPECT_THAT(run("theory verify equality").err, HasSubstr("equality (1 of 1)  100 %  17916/17916  in ")) << "how much is left";
  EXPECT_THAT(run("theory verify shift_down").out, HasSubstr("1 statements: 1 hold, 0 as repaired, 0 fail"));
}

TEST(TheoryCommand, DrawsAsTextAndSvg) {
  const TemporaryFolder folder;
  const Ran ran = run("theory show one_hot --out " + folder.file("hot.svg"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("layer 8: "));
  EXPECT_THAT(read_file(folder.file("hot.svg")), testing::StartsWith("<svg "));
  const Json frames = parse_json(run("theory show one_hot --json").out, "frames");
  EXPECT_EQ(frames["frames"].size(), frames["layers"].get<size_t>() + 1);
}

TEST(TheoryCommand, CountsAndTriesTheRecallProgram) {
  const Ran ran = run("theory mqar --n 8 --vocab 8 --inputs 200 --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json report = parse_json(ran.out, "report");
  EXPECT_EQ(report["program"]["layers"], 88);
  EXPECT_EQ(report["program"]["log_log"], 2);
  EXPECT_EQ(report["program"]["inputs"], 200);
  EXPECT_TRUE(report["program"]["pass"].get<bool>());
  EXPECT_FALSE(report.contains("causal_solver"));  // it has fewer keys than the requested pairs
  EXPECT_EQ(run("theory mqar --n 256 --vocab 4 --inputs 0").code, 0);
}

// The model with constructed weights is printed next to the program, and is saved and measured like any other.
TEST(TheoryCommand, SavesTheCausalSolver) {
  const TemporaryFolder folder;
  const Ran ran = run("theory mqar --n 6 --vocab 16 --inputs 0 --examples 50 --json --out " + folder.file("solver"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json solver = parse_json(ran.out, "report")["causal_solver"];
  EXPECT_EQ(solver["recall"], 1);
  const Ran eval = run("mqar eval --length 24 --pairs 6 --examples 50 --json --model " + folder.file("solver"));
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(parse_json(eval.out, "eval")["recall"], 1);
  EXPECT_EQ(parse_json(eval.out, "eval")["state_bytes"], solver["state_bytes"]);
  const Ran again = run("theory mqar --n 6 --vocab 16 --inputs 0 --examples 50 --model " + folder.file("solver"));
  EXPECT_THAT(again.out, HasSubstr("trained"));
  for (const char* sizes : {"--n 9 --vocab 16", "--n 2 --vocab 7"}) {
    const Ran refused = run("theory mqar --inputs 0 --out " + folder.file("none") + " " + sizes);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--n must be below half of --vocab"));
  }
  EXPECT_EQ(run("theory mqar --n 2 --vocab 7 --inputs 5").code, 0);
}

TEST(TheoryCommand, KeepsTheModelThatIsThere) {
  const TemporaryFolder folder;
  const std::string command = "theory mqar --n 2 --inputs 0 --examples 8 --out " + folder.file("out") + " --vocab ";
  ASSERT_EQ(run(command + "16").code, 0);
  const std::string weights = folder.file("out/model.safetensors"), before = read_file(weights);
  const auto expect_kept = [&](const std::string& options, const std::string& says) {
    const Ran refused = run(command + "32" + options);
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(says));
    EXPECT_EQ(refused.out, "") << "nothing was begun";
    EXPECT_TRUE(read_file(weights) == before);
  };
  expect_kept("", "--out " + folder.file("out") + ": holds a model (config.json); --overwrite replaces that, another --out keeps it");
  // The folder must not hold another model's tokenizer.
  write_file_atomic(folder.file("out/tokenizer.json"), "{}");
  for (const char* options : {"", " --overwrite"})
    expect_kept(options, "holds a model (config.json) and a tokenizer (tokenizer.json); this command does not replace that");
  std::filesystem::remove(folder.file("out/tokenizer.json"));
  std::filesystem::create_directory(folder.file("out/checkpoints"));
  expect_kept(" --overwrite", "and checkpoints of a training (checkpoints); this command does not replace that");
  std::filesystem::remove(folder.file("out/checkpoints"));
  EXPECT_EQ(run(command + "32 --overwrite").code, 0);
  EXPECT_FALSE(read_file(weights) == before);
}

TEST(TheoryCommand, SaysWhichFolderCannotBeMade) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("file"), "x");
  const Ran ran = run("theory mqar --n 2 --vocab 16 --inputs 0 --examples 8 --out " + folder.file("file/below"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "based: " + folder.file("file/below") + ": cannot make the folder: Not a directory\n");
}

TEST(TheoryCommand, RefusesNamesAndSizesThatAreNone) {
  Ran ran = run("theory verify one_hit");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("did you mean 'one_hot'?"));
  ran = run("theory show mamba_state");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("has no construction to draw; these have: "));
  ran = run("theory mqar --n 0");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--n"));
  ran = run("theory mqar --n 200 --vocab 4");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--inputs"));
}

}  // namespace theory_test
}  // namespace based
