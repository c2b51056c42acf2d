#include "based/generate/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <filesystem>
#include <set>

#include "based/core/files.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based {
namespace batch_test {

using testing::HasSubstr;

class BatchTest : public testing::Test {
 protected:
  struct Outcome {
    BatchReport report;
    std::vector<std::string> printed;
  };

  Outcome run(const std::string& out = "", bool resume = false, int64_t max_tokens = 12, int64_t cache_tokens = 0) {
    Engine engine(*model_, {.slots = 3, .cache_tokens = cache_tokens});
    Outcome outcome;
    const PromptsFile prompts(folder_.file("prompts.jsonl"));
    const PromptDefaults defaults{{.sampling = {0.9, 0, 1, 0, 1, 5}, .max_tokens = max_tokens}, {}};
    BatchOutput output{out, resume, {{"max_tokens", max_tokens}}, [&](const std::string& line) {
                         outcome.printed.push_back(line);
                         if (interrupt_after_ > 0 && static_cast<int>(outcome.printed.size()) == interrupt_after_) std::raise(SIGINT);
                       }};
    outcome.report = generate_batch(engine, tokenizer_, prompts, defaults, output);
    return outcome;
  }
  void write_prompts(const std::string& lines) { write_file_atomic(folder_.file("prompts.jsonl"), lines); }
  // The partial file of a killed run that has finished these prompts in this order. `whole`: the output of a complete run.
  std::string partial_of(const std::string& whole, const std::vector<size_t>& finished) const {
    std::vector<std::string> lines;
    for (size_t begin = 0; begin < whole.size(); begin = whole.find('\n', begin) + 1)
      lines.push_back(whole.substr(begin, whole.find('\n', begin) - begin + 1));
    std::string text = dump_json({{"prompts", PromptsFile(folder_.file("prompts.jsonl")).hash()}, {"run", {{"max_tokens", 12}}}}) + "\n";
    for (const size_t index : finished) text += lines.at(index);
    return text;
  }
  // More prompts than slots, which end at different steps.
  void write_some() {
    std::string lines;
    for (int i = 0; i < 11; ++i)
      lines += "{\"prompt\":\"number " + std::to_string(i) + "\",\"max_tokens\":" + std::to_string(2 + 7 * i % 10) + "}\n";
    write_prompts(lines);
  }
  TemporaryFolder folder_;
  std::shared_ptr<LanguageModel> model_ = distinct_model(torch::kCPU);
  ByteTokenizer tokenizer_;
  int interrupt_after_ = 0;
};

TEST_F(BatchTest, ResultsComeInTheOrderOfTheFileAndAreThoseOfTextsAlone) {
  write_some();
  const Outcome outcome = run();
  EXPECT_EQ(outcome.report.finished, 11);
  EXPECT_FALSE(outcome.report.interrupted);
  ASSERT_EQ(outcome.printed.size(), 11U);
  for (int64_t i = 0; i < 11; ++i) {
    const Json result = parse_json(outcome.printed[static_cast<size_t>(i)], "line");
    EXPECT_EQ(result["index"], i);
    const auto ids = result["ids"].get<std::vector<int64_t>>();
    const auto prompt = encode_ids(tokenizer_, "number " + std::to_string(i));
    EXPECT_EQ(result["seed"], seed_of_line(5, i));
    EXPECT_EQ(ids, session_text(*model_, prompt, static_cast<int64_t>(ids.size()), {0.9, 0, 1, 0, 1, seed_of_line(5, i)}));
    EXPECT_TRUE(result["finish_reason"] == "end_of_text" || static_cast<int64_t>(ids.size()) == 2 + 7 * i % 10);
  }
}

TEST_F(BatchTest, ABrokenLineIsNamedAndTheOthersRun) {
  write_prompts(
      "{\"prompt\":\"one\",\"id\":{\"a\":[1]}}\n"
      "\n"
      "{\"prompt\":\n"
      "{\"prompt\":\"\"}\n"
      "[1]\n"
      "{\"promt\":\"two\"}\n"
      "{\"ids\":[1,2.5]}\n"
      "{\"ids\":[1,999]}\n"
      "{\"prompt\":\"x\",\"ids\":[1]}\n"
      "{\"prompt\":\"x\",\"temperature\":-1}\n"
      "{\"prompt\":\"x\",\"max_tokens\":-1}\n"
      "{\"prompt\":\"x\",\"stop\":[\"a\",\"\"]}\n"
      "{\"ids\":[104,105],\"max_tokens\":3,\"temperature\":0}\n");
  const Outcome outcome = run();
  const std::vector<std::string> says{"",
                                      "prompts.jsonl:3: byte",
                                      "prompts.jsonl:4: the prompt is empty",
                                      "prompts.jsonl:5: must be an object",
                                      "prompts.jsonl:6: unknown key 'promt', did you mean 'prompt'?",
                                      "prompts.jsonl:7: 'ids' must be an integer, got 2.5",
                                      "prompts.jsonl:8: the text: token id 999",
                                      "prompts.jsonl:9: needs either 'prompt' or 'ids'",
                                      "prompts.jsonl:10: temperature must be",
                                      "prompts.jsonl:11: 'max_tokens' must not be negative",
                                      "prompts.jsonl:12: --stop must not be empty",
                                      ""};
  ASSERT_EQ(outcome.printed.size(), says.size());
  EXPECT_EQ(outcome.report.failed, 10);
  EXPECT_EQ(outcome.report.finished, 2);
  for (size_t i = 0; i < says.size(); ++i) {
    const Json result = parse_json(outcome.printed[i], "line");
    EXPECT_EQ(result.contains("error"), !says[i].empty()) << i;
    if (!says[i].empty()) {
      EXPECT_THAT(result["error"].get<std::string>(), HasSubstr(says[i])) << i;
    }
  }
  EXPECT_EQ(parse_json(outcome.printed[0], "line")["id"], parse_json("{\"a\":[1]}", "id"));
  EXPECT_EQ(parse_json(outcome.printed.back(), "line")["ids"].get<std::vector<int64_t>>(), greedy_text(*model_, {104, 105}, 3));
}

TEST_F(BatchTest, WhatAKilledRunHasFinishedIsNotDoneAgain) {
  write_some();
  const std::string out = folder_.file("out.jsonl"), again = folder_.file("again.jsonl");
  EXPECT_EQ(run(out).report.finished, 11);
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
  EXPECT_THAT(message_of<Error>([&] { run(out); }), HasSubstr("is there already"));
  const std::string whole = read_file(out);

  // The file of a run that was killed: inputs and options, then results in the order in which they finished; the last line is incomplete.
  write_file_atomic(again + ".partial", partial_of(whole, {4, 0, 7}) + whole.substr(0, 20));
  EXPECT_THAT(message_of<Error>([&] { run(again); }), HasSubstr("--resume does the rest"));
  EXPECT_THAT(message_of<UsageError>([&] { run(again, true, 13); }),
              HasSubstr("begun with other prompts, another model or other options (max_tokens is 13, and was 12); put them back"));
  const Outcome outcome = run(again, true);
  EXPECT_EQ(outcome.report.kept, 3);
  EXPECT_EQ(outcome.report.finished, 8);
  EXPECT_EQ(read_file(again), whole);
  EXPECT_FALSE(std::filesystem::exists(again + ".partial"));
}

TEST_F(BatchTest, AnInterruptedRunGivesOutWhatIsFinished) {
  write_some();
  const std::vector<std::string> whole = run().printed;
  interrupt_after_ = 3;
  const Outcome outcome = run();
  EXPECT_TRUE(outcome.report.interrupted);
  EXPECT_LT(outcome.report.finished, 11);
  EXPECT_EQ(static_cast<int64_t>(outcome.printed.size()), outcome.report.finished);
  for (const std::string& line : outcome.printed) EXPECT_EQ(line, whole[parse_json(line, "line")["index"].get<size_t>()]);
}

TEST_F(BatchTest, WhatFailedBeforeCountsAfterAResume) {
  write_prompts("{\"prompt\":5}\n{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
  const std::string out = folder_.file("out.jsonl"), again = folder_.file("again.jsonl");
  EXPECT_EQ(run(out).report.failed, 1);
  write_file_atomic(again + ".partial", partial_of(read_file(out), {0, 1}));
  const Outcome outcome = run(again, true);
  EXPECT_EQ(outcome.report.kept, 2);
  EXPECT_EQ(outcome.report.kept_failed, 1);
  EXPECT_EQ(outcome.report.failed, 0);
  EXPECT_EQ(outcome.report.finished, 1);
  EXPECT_EQ(read_file(again), read_file(out));
}

TEST_F(BatchTest, ADamagedLineOfThePartialFileIsNamedByItsNumber) {
  write_prompts("{\"prompt\":\"a\",\"id\":\"x\"}\n{\"prompt\":\"b\"}\n{\"prompt\":\"c\"}\n{\"prompt\":\"d\"}\n");
  const std::string out = folder_.file("out.jsonl"), partial = out + ".partial", whole = folder_.file("whole.jsonl");
  run(whole);
  const std::string one = partial_of(read_file(whole), {1});
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[1]", "must be an object"},
      {"3", "must be an object"},
      {"null", "must be an object"},
      {"", "not valid JSON"},
      {"{\"index\":3", "not valid JSON"},
      {"{\"index\":3}", "has no 'text'"},
      {"{\"text\":\"a\",\"ids\":[1],\"prompt_tokens\":1,\"finish_reason\":\"length\"}", "has no 'index'"},
      {"{\"index\":3,\"text\":5,\"ids\":[1],\"prompt_tokens\":1,\"finish_reason\":\"length\"}", "'text' must be a text"},
      {"{\"index\":3,\"text\":\"a\",\"prompt_tokens\":1,\"finish_reason\":\"length\"}", "has no 'ids'"},
      {"{\"index\":3,\"text\":\"a\",\"ids\":[-1],\"prompt_tokens\":1,\"finish_reason\":\"length\"}", "'ids' must be"},
      {"{\"index\":3,\"text\":\"a\",\"ids\":[1],\"prompt_tokens\":{},\"finish_reason\":\"length\"}", "'prompt_tokens' must be"},
      {"{\"index\":3,\"text\":\"a\",\"ids\":[1],\"prompt_tokens\":1}", "has no 'finish_reason'"},
      {"{\"index\":3,\"error\":7}", "'error' must be a text"},
      {"{\"index\":4,\"error\":\"x\"}", "a result of prompt 4, of which there is none"},
      {"{\"index\":-1,\"error\":\"x\"}", "'index' must be"},
      {"{\"index\":2.5,\"error\":\"x\"}", "'index' must be"},
      {"{\"index\":18446744073709551615,\"error\":\"x\"}", "'index' must be"},
      {"{\"index\":1,\"error\":\"x\"}", "prompt 1 has a result before"},
      {"{\"index\":0,\"id\":\"y\",\"error\":\"x\"}", "its 'id' is not that of the prompt"},
      {"{\"index\":3,\"id\":\"y\",\"error\":\"x\"}", "its 'id' is not that of the prompt"}};
  for (const auto& [line, says] : cases) {
    write_file_atomic(partial, one + line + "\n");
    EXPECT_THAT(message_of<Error>([&] { run(out, true); }),
                testing::AllOf(HasSubstr("out.jsonl.partial:3: is damaged: "), HasSubstr(says), HasSubstr("remove the line, and --resume")))
        << line;
    EXPECT_EQ(read_file(partial), one + line + "\n") << "the file stays as it is";
  }
  for (const std::string head : {"[1]\n", "{}\n", "{\"prompts\":1,\"run\":[]}\n", "x\n"}) {
    write_file_atomic(partial, head);
    EXPECT_THAT(message_of<Error>([&] { run(out, true); }), HasSubstr("out.jsonl.partial:1: ")) << head;
  }
  write_file_atomic(partial, "somebody's own file");
  EXPECT_THAT(message_of<UsageError>([&] { run(out, true); }), HasSubstr("is no file of results"));
  EXPECT_EQ(read_file(partial), "somebody's own file");
  write_file_atomic(partial, one.substr(0, 10));  // killed within the first line
  EXPECT_EQ(run(out, true).report.finished, 4);
  EXPECT_EQ(read_file(out), read_file(whole));
}

TEST_F(BatchTest, WhereThereIsNoRoomTheRunSaysWhatIsKeptAndIsGoneOnWith) {
  write_some();
  const std::string whole = folder_.file("whole.jsonl");
  run(whole);
  const std::string expected = read_file(whole);
  const size_t head = partial_of(expected, {}).size();
  for (const size_t room : {size_t{0}, head - 1, head, head + 50, head + expected.size() / 2, head + expected.size() - 1}) {
    SCOPED_TRACE(room);
    const std::string out = folder_.file("out.jsonl"), partial = out + ".partial";
    std::string message;
    {
      const FileSizeLimit full(room);
      const auto before = std::signal(SIGXFSZ, SIG_IGN);  // as the program does
      message = message_of<Error>([&] { run(out); });
      std::signal(SIGXFSZ, before);
    }
    EXPECT_THAT(message, HasSubstr("out.jsonl.partial: cannot write: File too large"));
    EXPECT_FALSE(std::filesystem::exists(out));
    const int64_t kept = std::filesystem::exists(partial) ? std::ranges::count(read_file(partial), '\n') - 1 : 0;
    if (kept > 0)
      EXPECT_THAT(message, HasSubstr(std::to_string(kept) + " of 11 results are kept in " + partial +
                                     ", and the same command with --resume does the rest"));
    else
      EXPECT_FALSE(std::filesystem::exists(partial)) << "nothing is left that blocks the next try";
    EXPECT_EQ(kept > 0, room > head + 50);
    const Outcome outcome = run(out, kept > 0);
    EXPECT_EQ(outcome.report.kept, kept);
    EXPECT_EQ(read_file(out), expected);
    std::filesystem::remove(out);
  }
}

TEST_F(BatchTest, WhereLogitsAreNotFiniteTheLineFailsAndSaysSo) {
  write_prompts("{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"max_tokens\":0}\n");
  const torch::NoGradGuard no_grad;
  model_->parameters().front().fill_(NAN);
  const Outcome outcome = run();
  EXPECT_EQ(outcome.report.failed, 2);
  EXPECT_EQ(outcome.report.finished, 0);
  ASSERT_EQ(outcome.printed.size(), 2U);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_THAT(parse_json(outcome.printed[i], "line")["error"].get<std::string>(),
                HasSubstr("prompts.jsonl:" + std::to_string(i + 1) + ": the model's logits are not finite"));
}

TEST_F(BatchTest, MaxTokensMayBeAnyNumber) {
  model_ = distinct_model(torch::kCPU, "attn-tiny");
  write_prompts("{\"prompt\":\"a\",\"max_tokens\":9223372036854775807}\n{\"prompt\":\"b\",\"max_tokens\":2}\n");
  const PromptsFile prompts(folder_.file("prompts.jsonl"));
  EXPECT_EQ(prompts.longest(tokenizer_, {}), INT64_MAX);
  const Outcome outcome = run("", false, 12, 40);
  EXPECT_EQ(outcome.report.finished, 2);
  const Json first = parse_json(outcome.printed.at(0), "line"), second = parse_json(outcome.printed.at(1), "line");
  if (first["finish_reason"] == "cache_full") {
    EXPECT_EQ(first["ids"].size(), 40U);
  } else {
    EXPECT_EQ(first["finish_reason"], "end_of_text");
  }
  EXPECT_GE(second["ids"].size(), 1U);
  EXPECT_NE(second["finish_reason"], "cache_full");
}

TEST_F(BatchTest, LinesWithoutASeedDrawApart) {
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "{\"prompt\":\"same\",\"temperature\":3}\n";
  for (int i = 0; i < 3; ++i) lines += "{\"prompt\":\"same\",\"temperature\":3,\"seed\":7}\n";
  write_prompts(lines);
  const std::vector<std::string> printed = run().printed;
  std::set<std::string> texts;
  for (size_t i = 0; i < 12; ++i) texts.insert(dump_json(parse_json(printed.at(i), "line")["ids"]));
  EXPECT_GT(texts.size(), 10U) << "hardly any text is as likely as that";
  const Json named = parse_json(printed.at(12), "line");
  EXPECT_EQ(named["seed"], 7);
  const auto ids = named["ids"].get<std::vector<int64_t>>();
  EXPECT_EQ(ids, session_text(*model_, encode_ids(tokenizer_, "same"), static_cast<int64_t>(ids.size()), {3, 0, 1, 0, 1, 7}));
  for (size_t i = 13; i < 15; ++i) EXPECT_EQ(parse_json(printed.at(i), "line")["ids"], named["ids"]);
}

TEST(SeedOfLine, IsMixedOfTheSeedAndTheIndex) {
  std::set<int64_t> seeds;
  int64_t ones = 0;
  for (int64_t seed = -20; seed < 20; ++seed)
    for (int64_t index = 0; index < 50; ++index) {
      const int64_t mixed = seed_of_line(seed, index);
      EXPECT_GE(mixed, 0);
      EXPECT_LT(mixed, int64_t{1} << 53) << "readers of JSON keep 53 bits";
      seeds.insert(mixed);
      ones += std::popcount(static_cast<uint64_t>(mixed ^ seed_of_line(seed, index + 1)));
    }
  EXPECT_EQ(seeds.size(), 2000U);
  EXPECT_NEAR(static_cast<double>(ones) / 2000, 26.5, 0.5) << "half of the bits change from a line to the next";
}

TEST_F(BatchTest, AFileWithoutPromptsIsAnError) {
  write_prompts("\n  \n");
  EXPECT_THAT(message_of<Error>([&] { run(); }), HasSubstr("holds no prompts"));
  EXPECT_THAT(message_of<Error>([&] { PromptsFile(folder_.file("none")); }), HasSubstr("none"));
}

}  // namespace batch_test
}  // namespace based
