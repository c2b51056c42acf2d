// `based generate --prompts`: finished results are never lost.
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
namespace prompts_test {

using testing::AllOf;
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

// A resumed run has the results of an uninterrupted one, and refuses options that would change them.
TEST_F(Prompts, AResumedRunRemembersWhatFailedAndWhatItWasBegunWith) {
  const std::string good = prompts(400);
  write_file_atomic(folder_->file("p.jsonl"), "{\"prompt\":5}\n" + read_file(folder_->file("p.jsonl")));
  const std::string command = good + " --max-tokens 60", whole = folder_->file("failing.jsonl"), out = folder_->file("resumed.jsonl");
  const Ran at_once = run(command + " --json --out " + whole);
  EXPECT_EQ(at_once.code, 1);
  EXPECT_THAT(at_once.err, AllOf(HasSubstr("400 of 401 prompts, "), HasSubstr("1 prompts failed; their lines say why")));
  {
    const Started started({"generate", "--prompts", folder_->file("p.jsonl"), "--slots", "3", "--model", folder_->file("m"), "--max-tokens",
                           "60", "--out", out},
                          folder_->file("o"), folder_->file("e"));
    for (int i = 0; i < 60'000 && lines_of(out + ".partial") < 5; ++i) usleep(500);
    started.signal(SIGINT);
    EXPECT_EQ(WEXITSTATUS(started.status()), 1);
  }
  const std::string partial = read_file(out + ".partial"), resume = command + " --json --resume --out " + out;
  for (const char* changed : {"--invariant", "--plain-steps", "--slots 4", "--dtype fp64", "--cache-tokens 5000", "--temperature 0.5",
                              "--seed 3", "--logprobs", "--stop x", "--top-k 3", "--top-p 0.5", "--min-p 0.1", "--repetition-penalty 1.5",
                              "--presence-penalty 1", "--frequency-penalty 1", "--logit-bias 7:-1", "--max-tokens 61"}) {
    const Ran ran = run(resume + " " + changed);
    EXPECT_EQ(ran.code, 2) << changed << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("was begun with other prompts, another model or other options (")) << changed;
    EXPECT_EQ(read_file(out + ".partial"), partial) << changed;
  }
  const Ran resumed = run(resume + " --dtype fp32 --device cpu");  // the defaults of the first run
  EXPECT_EQ(resumed.code, 1) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("400 of 401 prompts ("), HasSubstr("1 prompts failed (1 of them before); their lines say why")));
  const Json json = parse_json(resumed.out, "stdout");
  EXPECT_EQ(json["failed"], parse_json(at_once.out, "stdout")["failed"]);
  EXPECT_EQ(json["kept"].get<int64_t>() + json["finished"].get<int64_t>(), 401);
  EXPECT_EQ(read_file(out), read_file(whole));
}

// With --invariant the results do not depend on the number of slots, which may therefore change.
TEST_F(Prompts, SlotsMayChangeWhereResultsDoNotDependOnThem) {
  const std::string command = prompts(9) + " --max-tokens 9 --invariant", whole = folder_->file("nine.jsonl");
  const std::string out = folder_->file("nine-again.jsonl"), partial = out + ".partial";
  ASSERT_EQ(run(command + " --out " + whole).code, 0);
  ASSERT_EQ(run(command + " --out " + out, "ulimit -f 1; ").code, 1);
  ASSERT_TRUE(std::filesystem::exists(partial));
  const Ran resumed = run(command + " --slots 2 --resume --out " + out);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(read_file(out), read_file(whole));
}

TEST_F(Prompts, WhereTheDiskIsFullTheRunSaysHowToGoOn) {
  const std::string command = prompts(60) + " --max-tokens 20", whole = folder_->file("sixty.jsonl"), out = folder_->file("full.jsonl");
  ASSERT_EQ(run(command + " --out " + whole).code, 0);
  const Ran full = run(command + " --out " + out, "ulimit -f 4; ");
  EXPECT_EQ(full.code, 1);
  const int64_t kept = lines_of(out + ".partial") - 1;
  ASSERT_GT(kept, 0);
  EXPECT_THAT(full.err, AllOf(HasSubstr("full.jsonl.partial: cannot write: File too large"),
                              HasSubstr(std::to_string(kept) + " of 60 results are kept in "), HasSubstr("--resume does the rest")));
  const Ran resumed = run(command + " --json --resume --out " + out);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(parse_json(resumed.out, "stdout")["kept"], kept);
  EXPECT_EQ(read_file(out), read_file(whole));
  EXPECT_EQ(lines_of(out + ".partial"), 0);
}

// The largest number means "until a stop or the end of text".
TEST_F(Prompts, MaxTokensMayBeAnyNumberWhereTheStateGrows) {
  const std::string path = folder_->file("overflow.jsonl");
  write_file_atomic(path,
                    "{\"prompt\":\"a\",\"max_tokens\":9223372036854775807}\n{\"prompt\":\"b\",\"max_tokens\":9223372036854775000}\n"
                    "{\"prompt\":\"c\",\"max_tokens\":2}\n");
  for (const char* more : {"", " --cache-tokens 64", " --invariant"}) {
    const Ran ran = run("generate --prompts " + path + " --model " + folder_->file("attn") + more);
    ASSERT_EQ(ran.code, 0) << ran.err;
    size_t begin = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const size_t end = ran.out.find('\n', begin);
      const Json result = parse_json(ran.out.substr(begin, end - begin), "line");
      begin = end + 1;
      const std::string why = result["finish_reason"];
      const auto tokens = static_cast<int64_t>(result["ids"].size());
      EXPECT_TRUE(why == "end_of_text" || (i == 2 && why == "length") || (why == "cache_full" && tokens == 64)) << result;
    }
  }
  const Ran one = run("generate --prompt a --max-tokens 9223372036854775807 --cache-tokens 64 --model " + folder_->file("attn"));
  EXPECT_EQ(one.code, 0) << one.err;
  const Ran huge = run("generate --prompt a --cache-tokens 1125899906842624 --model " + folder_->file("attn"));
  EXPECT_EQ(huge.code, 1);
  EXPECT_THAT(huge.err, HasSubstr("--cache-tokens 1125899906842624, slots 1: weights and buffers take "));
}

TEST_F(Prompts, EqualLinesGetTextsOfTheirOwn) {
  write_file_atomic(folder_->file("same.jsonl"), "{\"prompt\":\"abc\"}\n{\"prompt\":\"abc\"}\n{\"prompt\":\"abc\",\"seed\":5}\n");
  const std::string command = "generate --max-tokens 30 --model " + folder_->file("m");
  const Ran ran = run(command + " --prompts " + folder_->file("same.jsonl"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::vector<Json> results;
  for (size_t begin = 0; begin < ran.out.size(); begin = ran.out.find('\n', begin) + 1)
    results.push_back(parse_json(ran.out.substr(begin, ran.out.find('\n', begin) - begin), "line"));
  ASSERT_EQ(results.size(), 3U);
  EXPECT_NE(results[0]["ids"], results[1]["ids"]);
  EXPECT_EQ(results[2]["seed"], 5);
  for (const Json& result : results) {  // each prompt on its own, with the seed in its result
    const Ran alone = run(command + " --json --prompt abc --seed " + std::to_string(result["seed"].get<int64_t>()));
    EXPECT_EQ(parse_json(alone.out, "stdout")["ids"], result["ids"]);
  }
  EXPECT_EQ(run(command + " --prompts " + folder_->file("same.jsonl")).out, ran.out) << "the same in every run";
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

// The time to the first token includes loading kernels and reading the prompt, so it does not count in the rate.
TEST_F(Prompts, PromptAndTokensAreCountedApart) {
  const Json json = parse_json(run("generate --json --prompt abc --max-tokens 5 --model " + folder_->file("m")).out, "stdout");
  EXPECT_GT(json["first_token_seconds"].get<double>(), 0);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(json["prompt_tokens"], 3);
}

}  // namespace prompts_test
}  // namespace based
