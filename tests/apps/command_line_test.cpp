// Parsing of values and names on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace command_line_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expect_usage_error(const std::string& arguments, const std::string& says) {
  const Ran ran = run(arguments);
  EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.err;
  EXPECT_THAT(ran.out, IsEmpty()) << arguments;
  EXPECT_THAT(ran.err, HasSubstr(says)) << arguments;
}

TEST(CommandLine, NumbersAreDecimalAndInRange) {
  const auto hash = [](const std::string& seed) { return run("mqar generate --json --examples 3 --seed " + seed).out; };
  EXPECT_EQ(hash("010"), hash("10"));
  EXPECT_NE(hash("010"), hash("8"));
  EXPECT_EQ(run("mqar generate --examples 3 --seed -9223372036854775808").code, 0);
  const std::string range = "--seed must be an integer from -9223372036854775808 to 9223372036854775807, got '";
  for (const std::string text : {"99999999999999999999", "9223372036854775808", "0x10", "1e3", "1.0", "+1", "1 ", "''", "0b1", "one"}) {
    const std::string shown = text == "''" ? "" : text;
    expect_usage_error("mqar generate --seed \"" + shown + "\"", range + shown + "'");
  }
  expect_usage_error("mqar generate --examples 0", "--examples must be an integer from 1 to ");
  expect_usage_error("mixers --tokens 0", "--tokens must be an integer from 1 to ");
  for (const std::string text : {"nan", "inf", "-inf", "0x1p3", "1e999", "1,5", "half"})
    expect_usage_error("mqar generate --power-a " + text, "--power-a must be a number, got '" + text + "'");
  for (const std::string text : {"1", "yes", "TRUE"})
    expect_usage_error("mqar generate --random-fillers " + text, "--random-fillers must be true or false, got '" + text + "'");
}

TEST(CommandLine, AListTakesOneValueAnOccurrenceLiterally) {
  const TemporaryFolder folder;
  for (const char* name : {"[t,u]", "plain", "[]"}) write_file_atomic(folder.file(name), "the cat sat on the mat\n");
  const Ran train = run("tokenize train --format text --special '[PAD]' " + folder.file("plain") +
                            " --special '[a,b]' --vocab-size 300 --out " + folder.file("bpe") + " '[t,u]' '[]' --json",
                        "cd " + folder.path().string() + "; ");
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_EQ(parse_json(train.out, "stdout")["documents"], 3);
  const Json made = parse_json(run("tokenize inspect --json --id 1 --id 0 --tokenizer " + folder.file("bpe")).out, "stdout");
  EXPECT_EQ(made["specials"].dump(), R"({"[PAD]":0,"[a,b]":1})");
  EXPECT_EQ(made["ids"].size(), 2U);
  // An option takes one value; the next argument is the config.
  EXPECT_THAT(run("train --set a=1 " + folder.file("none.toml")).err, HasSubstr("none.toml: cannot open"));
  expect_usage_error("train --set [a=1,b=2] --set a " + folder.file("plain"), "plain");
}

TEST(CommandLine, AnEmptyValueIsNotTheNextArgument) {
  expect_usage_error("mqar generate --compat= --json", "--compat= has no value; an empty value is written --compat ''");
  expect_usage_error("mqar generate --compat '' --json", "compat must be 'none' or 'zoology', got ''");
}

TEST(CommandLine, AWrongNameNamesTheNearest) {
  expect_usage_error("genrate --prompt x", "unknown command 'genrate'; did you mean 'generate'?");
  expect_usage_error("mqar evla", "unknown command 'evla'; did you mean 'eval'?");
  expect_usage_error("generate --modle x", "unknown option '--modle'; did you mean '--model'?");
  expect_usage_error("mqar generate --exampels=3", "unknown option '--exampels'; did you mean '--examples'?");
  expect_usage_error("mqar generate surplus", "unknown argument 'surplus'");
  expect_usage_error("mqar", "Run `based mqar --help`");
}

TEST(CommandLine, MessagesDoNotSteerTheTerminal) {
  const Ran ran = run("inspect \"$(printf '/none\\033[2J')\"");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("/none\\u001b[2J: does not exist"));
}

TEST(CommandLine, TextComesOutWithEveryByte) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("run.toml"),
                    "[model]\nd_model = 8\nlayers = [\"gated_conv\"]\nmlp_width = 8\n[data]\ntrain = \"" + folder.file("text.txt") +
                        "\"\ntokenizer = \"bytes\"\n[train]\nbatch = 8\nlength = 16\nevaluate_batches = 1\nsteps = 200\n"
                        "[optimizer]\nlearning_rate = 0.05\n");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += {'a', '\0'};
  write_file_atomic(folder.file("text.txt"), text);
  const Ran train = run("train " + folder.file("run.toml") + " --out " + folder.file("model"));
  ASSERT_EQ(train.code, 0) << train.err;
  for (const char* how : {"", " --stream"}) {
    const Ran ran = run("generate --prompt a --max-tokens 6 --temperature 0 --model " + folder.file("model") + how);
    EXPECT_THAT(ran.out, HasSubstr(text.substr(1, 5))) << how << ran.err;
  }
}

}  // namespace command_line_test
}  // namespace based
