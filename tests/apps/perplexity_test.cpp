// The counts of `based perplexity`; and that all commands give a token the same score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "based/core/json.h"
#include "tests/apps/small_model.h"

namespace based {
namespace perplexity_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PerplexityProgram : public SmallModel {
 protected:
  // A byte model whose 257 tokens are padded to 1,000. Training hardly changes the weights, so padding rows are as likely as tokens.
  static void SetUpTestSuite() {
    train_model(R"([model]
d_model = 16
layers = ["gla"]
mlp_width = 16
pad_vocab_multiple = 1000
[optimizer]
learning_rate = 1e-9
min_learning_rate = 0
[train]
steps = 1
batch = 1
length = 32
evaluate_every = 0
evaluate_batches = 1000
[data]
tokenizer = "bytes"
)",
                60);
  }
  static std::string command(const std::string& data, const std::string& more = "") {
    return "perplexity --json --model " + shared("m") + " --data " + data + " " + more;
  }
  static Json figures(const std::string& data, const std::string& more = "") {
    const Ran ran = run(command(data, more));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return parse_json(ran.out, "the result");
  }
};

TEST_F(PerplexityProgram, ReadsAFileByItsName) {
  write_file_atomic(folder_.file("a.jsonl"), "{\"text\": \"the cat sat\"}\n{\"text\": \"on the mat\"}\n");
  write_file_atomic(folder_.file("a.fa"), ">one two\nACGT\nACGT\n");
  const std::string lines = folder_.file("a.jsonl"), fasta = folder_.file("a.fa");
  EXPECT_EQ(figures(lines)["documents"], 2);
  EXPECT_EQ(figures(lines)["bytes"], 10 + 9);  // the first token of each is not predicted
  EXPECT_EQ(figures(lines)["perplexity"], figures(lines, "--format jsonl")["perplexity"]);
  EXPECT_EQ(figures(lines, "--format text")["documents"], 1);
  EXPECT_EQ(figures(fasta)["bytes"], 7);
  write_file_atomic(folder_.file("a.csv"), "text\nthe cat\n");
  EXPECT_THAT(run(command(folder_.file("a.csv"))).err, HasSubstr("a.csv: the name tells a format that is not read; give the format as"));
  EXPECT_EQ(run(command(folder_.file("a.csv"), "--format text")).code, 0);
}

TEST_F(PerplexityProgram, PredictsEveryTokenButTheFirstOnceWhateverTheContext) {
  const std::string text = shared("text.txt");
  const Json whole = figures(text);
  for (const char* context : {"2", "3", "16", "64", "1000000"}) {
    const Json some = figures(text, std::string("--context ") + context);
    for (const char* same : {"tokens", "bytes", "words", "documents"}) EXPECT_EQ(some[same], whole[same]) << same << ' ' << context;
    EXPECT_NEAR(some["bits_per_byte"].get<double>() * std::log(2.0) * some["bytes"].get<double>(),
                some["nats_per_token"].get<double>() * some["tokens"].get<double>(), 1e-6);
  }
  EXPECT_EQ(whole["tokens"], whole["bytes"]);
  EXPECT_GT(whole["bits_per_byte"], 7.9);  // an untrained model of bytes
}

TEST_F(PerplexityProgram, NamesAndLeavesOutDocumentsWithNothingToPredict) {
  write_file_atomic(folder_.file("short.jsonl"), "{\"text\":\"a\"}\n{\"text\":\"the cat\"}\n\n{\"text\":\"\"}\n{\"text\":\"sat\"}\n");
  write_file_atomic(folder_.file("long.jsonl"), "{\"text\":\"the cat\"}\n{\"text\":\"sat\"}\n");
  Json some = figures(folder_.file("short.jsonl")), same = figures(folder_.file("long.jsonl"));
  EXPECT_EQ(some["documents_too_short"], 2);
  EXPECT_EQ(some["documents"], 2);
  EXPECT_GT(some["bits_per_byte"], 7.5);
  for (const char* counted : {"bytes", "words", "tokens", "bits_per_byte", "perplexity", "word_perplexity"})
    EXPECT_EQ(some[counted], same[counted]);
  EXPECT_THAT(run(command(folder_.file("short.jsonl"))).err,
              AllOf(HasSubstr("2 documents have fewer than two tokens"), HasSubstr("short.jsonl:1, "), HasSubstr("short.jsonl:4"),
                    Not(HasSubstr("short.jsonl:2"))));
  write_file_atomic(folder_.file("none.jsonl"), "{\"text\":\"a\"}\n{\"text\":\"\"}\n");
  const Ran none = run(command(folder_.file("none.jsonl")));
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("none.jsonl: needs a document of at least two tokens"));
}

// 743 of the model's 1,000 rows are padding. In the softmax they would cost ln(1000 / 257) = 1.36 nats per token.
TEST_F(PerplexityProgram, EvaluationAndLogProbabilitiesScoreATokenAlike) {
  const Json generated =
      parse_json(run("generate --model " + shared("m") + " --prompt t --max-tokens 40 --temperature 0 --logprobs --json").out, "");
  const std::string continued = "t" + generated["text"].get<std::string>();
  write_file_atomic(folder_.file("t.jsonl"), dump_json({{"text", continued}}) + "\n");
  const auto scores = generated["log_probabilities"].get<std::vector<double>>();
  const Json scored = figures(folder_.file("t.jsonl"));
  EXPECT_NEAR(scores[0], -std::log(257), 0.5);
  EXPECT_NEAR(scored["nats_per_token"].get<double>(), std::log(257), 0.5);
  const double padded = figures(folder_.file("t.jsonl"), "--padded-columns")["nats_per_token"].get<double>();
  EXPECT_NEAR(padded - scored["nats_per_token"].get<double>(), std::log(1000.0 / 257), 0.2);
  double evaluated = 0;
  std::ifstream metrics(shared("m/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);)
    if (const Json json = parse_json(line, ""); json.contains("eval_loss")) evaluated = json["eval_loss"].get<double>();
  EXPECT_NEAR(evaluated, std::log(257), 0.5);
}

}  // namespace perplexity_test
}  // namespace based
