// `based train CONFIG --print-recipe` from the command line: the config names data and a GPU that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace recipe_program_test {

using ::testing::HasSubstr;

const std::string kPrint = "train " BASED_SOURCE_DIR "/experiments/pile/attention-360m.toml --print-recipe ";

TEST(PrintRecipe, PrintsTheTableAndTrainsNothing) {
  const TemporaryFolder folder;
  const Ran ran = run(kPrint + "--out " + folder.file("out"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("Optimizer momentum"));
  EXPECT_THAT(ran.out, HasSubstr("Rotary Emb. Fraction"));
  EXPECT_THAT(ran.out, HasSubstr("359801856 (360M)\n"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out")));
}

TEST(PrintRecipe, FollowsKeysOfTheCommandLine) {
  const Ran ran = run(kPrint + "--json --set train.steps=100000 --set optimizer.beta2=0.99");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json recipe = parse_json(ran.out, "stdout");
  EXPECT_EQ(recipe.at("steps"), 100000);
  EXPECT_EQ(recipe.at("warmup_steps"), 1000);
  EXPECT_EQ(recipe.at("settings").at("Optimizer momentum"), "0.9, 0.99");
}

TEST(PrintRecipe, RefusesWrongConfigs) {
  const Ran ran = run(kPrint + "--set model.layers=[\\\"atention\\\"]");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("attention"));
  EXPECT_EQ(ran.out, "");
}

}  // namespace recipe_program_test
}  // namespace based
