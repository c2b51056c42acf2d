#include "based/generate/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based {
namespace {

using testing::HasSubstr;

class BatchTest : public testing::Test {
 protected:
  struct Outcome {
    BatchReport report;
    std::vector<std::string> printed;
  };

  Outcome run(const std::string& out = "", bool resume = false, int64_t max_tokens = 12) {
    Engine engine(*model_, {.slots = 3});
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
  // Some that end at different steps, more than there are slots.
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
    EXPECT_EQ(ids, session_text(*model_, prompt, static_cast<int64_t>(ids.size()), {0.9, 0, 1, 0, 1, 5}));
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

  // As it is while a run goes on: what decides it, then results in the order in which they came; the last line was being written.
  interrupt_after_ = 0;
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < whole.size(); begin = whole.find('\n', begin) + 1)
    lines.push_back(whole.substr(begin, whole.find('\n', begin) - begin + 1));
  const PromptsFile prompts(folder_.file("prompts.jsonl"));
  const std::string head = dump_json({{"prompts", prompts.hash()}, {"run", {{"max_tokens", 12}}}}) + "\n";
  write_file_atomic(again + ".partial", head + lines[4] + lines[0] + lines[7] + lines[2].substr(0, 20));
  EXPECT_THAT(message_of<Error>([&] { run(again); }), HasSubstr("--resume does the rest"));
  EXPECT_THAT(message_of<Error>([&] { run(again, true, 13); }), HasSubstr("begun with other prompts, another model or other options"));
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

TEST_F(BatchTest, AFileWithoutPromptsIsAnError) {
  write_prompts("\n  \n");
  EXPECT_THAT(message_of<Error>([&] { run(); }), HasSubstr("holds no prompts"));
  EXPECT_THAT(message_of<Error>([&] { PromptsFile(folder_.file("none")); }), HasSubstr("none"));
}

}  // namespace
}  // namespace based
