// `based generate --prompts`: what is finished is never lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace {

using testing::HasSubstr;

class Prompts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    ASSERT_EQ(run("presets based-tiny --out " + folder_->file("m") + " --tokenizer bytes").code, 0);
    ASSERT_EQ(run("presets attn-tiny --out " + folder_->file("attn") + " --tokenizer bytes").code, 0);
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string prompts(int64_t count, const std::string& last = "") {
    std::string lines;
    for (int64_t i = 0; i < count; ++i) lines += "{\"prompt\":\"text " + std::to_string(i) + "\",\"seed\":" + std::to_string(i) + "}\n";
    write_file_atomic(folder_->file("p.jsonl"), lines + last);
    return "generate --prompts " + folder_->file("p.jsonl") + " --slots 3 --model " + folder_->file("m");
  }
  static int64_t lines_of(const std::string& path) {
    if (!std::filesystem::exists(path)) return 0;
    const std::string text = read_file(path);
    return std::count(text.begin(), text.end(), '\n');
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* Prompts::folder_ = nullptr;

TEST_F(Prompts, ResultsAreInTheOrderOfTheFileOnOutputAndInAFile) {
  const std::string command = prompts(7) + " --max-tokens 9";
  const Ran ran = run(command);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Ran to_file = run(command + " --json --out " + folder_->file("order.jsonl"));
  ASSERT_EQ(to_file.code, 0) << to_file.err;
  EXPECT_EQ(read_file(folder_->file("order.jsonl")), ran.out);
  EXPECT_EQ(parse_json(to_file.out, "stdout")["finished"], 7);
  size_t begin = 0;
  for (int64_t i = 0; i < 7; ++i) {
    const size_t end = ran.out.find('\n', begin);
    EXPECT_EQ(parse_json(ran.out.substr(begin, end - begin), "line")["index"], i);
    begin = end + 1;
  }
  EXPECT_THAT(run(command + " --out " + folder_->file("order.jsonl")).err, HasSubstr("order.jsonl: is there already"));
}

TEST_F(Prompts, ABrokenLineFailsAloneAndTheExitStatusSaysSo) {
  const Ran ran = run(prompts(2, "{\"promt\":\"x\"}\n") + " --max-tokens 4");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.out, HasSubstr("p.jsonl:3: unknown key 'promt', did you mean 'prompt'?"));
  EXPECT_THAT(ran.err, HasSubstr("1 prompts failed"));
}

TEST_F(Prompts, AnInterruptedOrKilledRunGoesOn) {
  const std::string command = prompts(400) + " --max-tokens 60";
  const std::string whole = folder_->file("whole.jsonl");
  ASSERT_EQ(run(command + " --out " + whole).code, 0);
  for (const int signal : {SIGINT, SIGKILL}) {
    const std::string out = folder_->file("out" + std::to_string(signal) + ".jsonl"), partial = out + ".partial";
    const std::vector<std::string> arguments{"generate", "--prompts",        folder_->file("p.jsonl"), "--slots", "3",
                                             "--model",  folder_->file("m"), "--max-tokens",           "60",      "--out",
                                             out};
    {
      const Started started(arguments, folder_->file("o"), folder_->file("e"));
      for (int i = 0; i < 60'000 && lines_of(partial) < 5; ++i) usleep(500);
      started.signal(signal);
      const int status = started.status();
      if (signal == SIGINT) {
        EXPECT_EQ(WEXITSTATUS(status), 1);
        EXPECT_THAT(read_file(folder_->file("e")), HasSubstr("with --resume does the rest"));
      }
    }
    ASSERT_FALSE(std::filesystem::exists(out));
    EXPECT_GE(lines_of(partial), 5);
    EXPECT_EQ(run(command + " --out " + out).code, 2) << "without --resume nothing is replaced";
    const Ran resumed = run(command + " --json --resume --out " + out);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_GE(parse_json(resumed.out, "stdout")["kept"].get<int64_t>(), 4);
    EXPECT_EQ(read_file(out), read_file(whole));
  }
}

TEST_F(Prompts, TwoRunsDoNotWriteOneFile) {
  const std::string command = prompts(400) + " --max-tokens 60 --out " + folder_->file("one.jsonl");
  const std::string partial = folder_->file("one.jsonl.partial");
  const Started started({"generate", "--prompts", folder_->file("p.jsonl"), "--slots", "3", "--model", folder_->file("m"), "--max-tokens",
                         "100000", "--out", folder_->file("one.jsonl")},
                        folder_->file("o"), folder_->file("e"));
  for (int i = 0; i < 60'000 && lines_of(partial) < 1; ++i) usleep(500);
  for (const char* more : {"", " --resume"}) {
    const Ran second = run(command + more);
    EXPECT_EQ(second.code, 1);
    EXPECT_THAT(second.err, HasSubstr("one.jsonl: another run is writing to this file (process "));
  }
  started.signal(SIGKILL);
  started.status();
  EXPECT_EQ(run(command).code, 2) << "what a killed run left is no obstacle";
  EXPECT_FALSE(std::filesystem::exists(folder_->file("one.jsonl.lock")));
}

TEST_F(Prompts, WhatDoesNotFitTheMemoryIsSaidFirst) {
  prompts(3);
  const Ran ran =
      run("generate --prompts " + folder_->file("p.jsonl") + " --model " + folder_->file("attn") + " --cache-tokens 1000000000000");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("--slots 3: weights and buffers take "));
  EXPECT_THAT(ran.err, HasSubstr("slot fits"));
}

TEST_F(Prompts, OptionsThatDoNotGoTogetherAreWrongUsage) {
  const std::string command = prompts(1);
  for (const char* more : {" --prompt x", " --stream", " --save-state x", " --resume"}) EXPECT_EQ(run(command + more).code, 2) << more;
  EXPECT_EQ(run("generate --prompt x --slots 3 --model " + folder_->file("m")).code, 2);
}

// The first token's time is that of loading kernels and of the prompt; it is no part of the rate.
TEST_F(Prompts, PromptAndTokensAreCountedApart) {
  const Json json = parse_json(run("generate --json --prompt abc --max-tokens 5 --model " + folder_->file("m")).out, "stdout");
  EXPECT_GT(json["first_token_seconds"].get<double>(), 0);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(json["prompt_tokens"], 3);
}

}  // namespace
}  // namespace based
