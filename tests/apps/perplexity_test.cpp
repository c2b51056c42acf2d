// The counts of `based perplexity`; and that all commands give a token the same score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "based/core/json.h"
#include "based/core/safetensors.h"
#include "based/data/slices.h"
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

// As in training, a model of DNA reads N as [PAD] and does not predict it.
TEST_F(PerplexityProgram, LeavesOutTheGapsOfDna) {
  std::string genome;
  for (int i = 0; i < 30; ++i) genome += "ACGTTGCAACGTNNNNACGTACCA";
  write_file_atomic(folder_.file("train.fa"), ">c\n" + genome + "\n");
  write_file_atomic(folder_.file("dna.toml"), R"([model]
d_model = 16
layers = ["gla"]
[train]
steps = 1
batch = 1
length = 8
evaluate_every = 0
[data]
tokenizer = "dna"
train = ")" + folder_.file("train.fa") + "\"\n");
  ASSERT_EQ(run("train " + folder_.file("dna.toml") + " --out " + folder_.file("dna")).code, 0);
  const auto measure = [&](const std::string& letters, const std::string& more) {
    write_file_atomic(folder_.file("a.fa"), ">c\n" + letters + "\n");
    const Ran ran = run("perplexity --json --model " + folder_.file("dna") + " --data " + folder_.file("a.fa") + " " + more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return parse_json(ran.out, "the result");
  };
  const Json gaps = measure("ACNNNGTA", "--per-token " + folder_.file("tokens.safetensors"));
  EXPECT_EQ(gaps["tokens"], 4);
  EXPECT_EQ(gaps["bytes"], 4);
  EXPECT_EQ(gaps["gap_tokens"], 3);
  EXPECT_FALSE(gaps.contains("words"));
  const SafetensorsFile tokens(folder_.file("tokens.safetensors"));
  EXPECT_EQ(tokens.at("nats").shape, std::vector<int64_t>{4});
  EXPECT_EQ(measure("ACNNNGTA", "--context 3")["tokens"], 4);
  EXPECT_EQ(measure("ACGTA", "")["gap_tokens"], 0);
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

// Packed windows and slices. Pairs such as "do" recur in a document and never occur in training; "th" occurs there 20 times.
class PerplexityOfShards : public PerplexityProgram {
 protected:
  void SetUp() override {
    std::string test, train;
    for (int i = 0; i < 20; ++i) {
      const std::string number = std::to_string(i * 37 % 101);
      test += "{\"text\": \"the dog number " + number + " saw the dog\", \"meta\": {\"pile_set_name\": \"" + (i % 3 == 0 ? "Odd" : "Dogs") +
              "\"}}\n";
      train += "{\"text\": \"the cat number " + number + "\"}\n";
    }
    write_file_atomic(file("test.jsonl"), test);
    write_file_atomic(file("train.jsonl"), train);
    for (const char* name : {"test", "train"}) {
      const Ran packed = run("data pack " + file(std::string(name) + ".jsonl") + " --tokenizer bytes --out " + file(name));
      ASSERT_EQ(packed.code, 0) << packed.err;
    }
  }
  std::string windows(const std::string& more = "") const { return "--context 32 " + more; }
  std::string slices() const { return windows("--slices " + file("train") + " --threshold 11 "); }
  void expect_refused(const std::string& data, const std::string& more, int code, const std::string& says) {
    const Ran ran = run(command(data, more));
    EXPECT_EQ(ran.code, code) << more << "\n" << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(says)) << more;
    EXPECT_EQ(ran.out, "") << more;
  }
};

template <class T>
std::vector<T> column(const SafetensorsFile& tokens, const char* name) {
  std::vector<T> values(static_cast<size_t>(tokens.at(name).shape.at(0)));
  std::memcpy(values.data(), tokens.at(name).bytes.data(), values.size() * sizeof(T));
  return values;
}

TEST_F(PerplexityOfShards, IsTheSameForAnyBatch) {
  const Json one = figures(file("test"), slices() + "--batch 1");
  const auto windows = one["windows"].get<int64_t>();
  ASSERT_GT(windows, 8);
  EXPECT_EQ(one["tokens"], 32 * windows);
  EXPECT_LT(one["tokens_left_out"], 32);
  EXPECT_EQ(one["documents"], 20);
  for (const char* batch : {"3", "64", "0"}) {
    const Json other = figures(file("test"), slices() + "--batch " + batch);
    EXPECT_NEAR(other["perplexity"].get<double>() / one["perplexity"].get<double>(), 1, 1e-6);
    for (const char* slice : {"all", "ar", "other"}) {
      const Json &a = one["slices"][0][slice], &b = other["slices"][0][slice];
      EXPECT_EQ(a["tokens"], b["tokens"]) << slice << ' ' << batch;
      EXPECT_NEAR(a["nats"].get<double>() / b["nats"].get<double>(), 1, 1e-6) << slice << ' ' << batch;
    }
  }
}

TEST_F(PerplexityOfShards, BySliceAgreesWithTheTokens) {
  const std::string path = file("tokens.safetensors");
  const Json json = figures(file("test"), slices() + "--threshold 24 --per-token " + path);
  EXPECT_EQ(json["slices"].size(), 2U);
  EXPECT_EQ(json["training_tokens"], TokenDataset(file("train")).tokens());
  const Json figure = json["slices"][0];
  const double share = figure["ar_share"].get<double>();
  EXPECT_GT(share, 0);
  EXPECT_GT(json["slices"][1]["ar_share"], share);
  EXPECT_EQ(json["slices"][1]["threshold"], 24);
  EXPECT_NEAR(
      std::log(json["perplexity"].get<double>()),
      share * std::log(figure["ar"]["perplexity"].get<double>()) + (1 - share) * std::log(figure["other"]["perplexity"].get<double>()),
      1e-12);

  const SafetensorsFile tokens(path);
  const auto ids = column<int32_t>(tokens, "id"), documents = column<int32_t>(tokens, "document");
  const auto nats = column<float>(tokens, "nats");
  const auto slice = column<uint8_t>(tokens, "slice");
  const TokenDataset test(file("test"));
  std::vector<int32_t> wanted(ids.size());
  test.copy(1, wanted);
  EXPECT_EQ(ids, wanted);
  SliceFigures sums;
  std::map<std::string, double> by_source;
  for (size_t i = 0; i < ids.size(); ++i) {
    sums.add(nats[i], slice[i] == 1 ? 0 : kNewPair);
    EXPECT_EQ(documents[i], test.document_at(static_cast<int64_t>(i) + 1));
    by_source[documents[i] % 3 == 0 ? "Odd" : "Dogs"] += nats[i];
  }
  EXPECT_EQ(sums.ar.tokens, figure["ar"]["tokens"]);
  EXPECT_NEAR(sums.ar.nats, figure["ar"]["nats"].get<double>(), 1e-6);
  EXPECT_NEAR(sums.all.nats, figure["all"]["nats"].get<double>(), 1e-6);
  ASSERT_EQ(json["sources"].size(), 2U);
  for (const auto& [name, sum] : by_source) {
    EXPECT_NEAR(json["sources"][name]["nats"].get<double>(), sum, 1e-6) << name;
    EXPECT_EQ(json["sources"][name]["slices"].size(), 2U);
  }
}

// Documents of a file are contexts of their own, and so are the documents of shards with --documents if a window holds all of them.
TEST_F(PerplexityOfShards, OfSeparateDocumentsIsThatOfTheFile) {
  const int64_t tokens = TokenDataset(file("test")).tokens();
  const std::string counted = " --slices " + file("train") + " --threshold 11";
  const Json shards = figures(file("test"), "--documents --context " + std::to_string(tokens - 1) + counted);
  const Json text = figures(file("test.jsonl"), "--per-token " + file("text.safetensors") + counted);
  EXPECT_EQ(shards["tokens"], text["tokens"].get<int64_t>() + 20);  // the ends of documents
  EXPECT_GT(text["slices"][0]["ar"]["tokens"], 0);
  EXPECT_EQ(shards["slices"][0]["ar"]["tokens"], text["slices"][0]["ar"]["tokens"]);
  EXPECT_NEAR(shards["slices"][0]["ar"]["nats"].get<double>(), text["slices"][0]["ar"]["nats"].get<double>(), 1e-3);
  EXPECT_EQ(text["sources"].size(), 2U);
  const SafetensorsFile file_tokens(file("text.safetensors"));
  const auto ids = column<int32_t>(file_tokens, "id"), documents = column<int32_t>(file_tokens, "document");
  EXPECT_EQ(std::string(ids.begin(), ids.begin() + 5), "he do");
  EXPECT_EQ(documents.front(), 0);
  EXPECT_EQ(documents.back(), 19);
}

TEST_F(PerplexityOfShards, PrintsATable) {
  const Ran ran = run("perplexity --model " + shared("m") + " --data " + file("test") + " " + slices());
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("at most 11 times in "), HasSubstr("\nAR "), HasSubstr("\nOther "), HasSubstr("\nDogs "),
                             HasSubstr("\nBy source; AR and Other by the threshold 11\n")));
}

TEST_F(PerplexityOfShards, RefusesWhatDoesNotFitTogether) {
  const std::string test = file("test"), train = file("train");
  expect_refused(test, "", 2, "--context must give the length of a window");
  expect_refused(test, "--context 100000", 1, test + ": has ");
  expect_refused(test, windows("--format jsonl"), 2, "--format is for text");
  expect_refused(file("test.jsonl"), "--documents", 2, "--documents is for packed data");
  expect_refused(test, windows("--threshold 5"), 2, "--threshold needs --slices");
  expect_refused(test, windows("--slices " + train + " --threshold=-1"), 2, "--threshold must be at least 0, got -1");
  expect_refused(test, windows("--slices " + file("train.jsonl")), 2, "train.jsonl: needs the folder of the training shards");
  expect_refused(test, windows("--slices " + train + " --slices " + train + "/"), 2, "--slices names " + train + "/ twice");
  expect_refused(test, windows("--per-token " + file("x.npy")), 2,
                 "x.npy: the file is of safetensors, so its name must end in .safetensors");
  ASSERT_EQ(run("tokenize train " + file("train.jsonl") + " --vocab-size 260 --out " + file("bpe")).code, 0);
  ASSERT_EQ(run("data pack " + file("train.jsonl") + " --tokenizer " + file("bpe") + " --out " + file("other")).code, 0);
  expect_refused(test, windows("--slices " + file("other")), 1, "packed with another tokenizer");
  expect_refused(file("other"), windows(), 1, "packed with another tokenizer");
  std::filesystem::create_directory(file("empty"));
  expect_refused(test, windows("--slices " + file("empty")), 1, "no token shards");
}

TEST_F(PerplexityOfShards, NamesAPerTokenFileThatDoesNotFitOnTheDisk) {
  const std::string path = file("tokens.safetensors");
  write_file_atomic(path, "before");
  const Ran full = run(command(file("test"), windows("--per-token " + path)), "ulimit -f 4; ");
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr(path + ": "));
  EXPECT_EQ(read_file(path), "before");
}

}  // namespace perplexity_test
}  // namespace based
