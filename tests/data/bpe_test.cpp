#include "based/data/bpe.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/data/bpe_trainer.h"
#include "based/data/pretokenizer.h"
#include "tests/data/goldens.h"

namespace based {
namespace bpe_test {

// The definition: repeatedly merges the first occurrence of the pair with the best rank.
std::vector<int32_t> merge_plainly(const Vocabulary& vocabulary, const std::string& piece) {
  std::map<std::pair<int32_t, int32_t>, size_t> rank;
  std::map<std::string, int32_t> byte;
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) rank[{vocabulary.merges[i].left, vocabulary.merges[i].right}] = i;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) byte[vocabulary.tokens[id]] = static_cast<int32_t>(id);
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(byte.at(std::string(1, c)));
  for (;;) {
    size_t best = vocabulary.merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = rank.find({ids[i], ids[i + 1]});
      if (found != rank.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == vocabulary.merges.size()) return ids;
    ids[at] = vocabulary.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Merges in an order that training cannot give: a merge may use tokens that later merges produce.
Vocabulary shuffled_vocabulary(uint32_t seed) {
  std::mt19937 random(seed);
  BpeTrainer trainer({.vocab_size = 256 + 60, .min_frequency = 1, .specials = {}});
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "abc "[random() % 4];
  trainer.add(text);
  Vocabulary vocabulary = trainer.train();
  std::shuffle(vocabulary.merges.begin(), vocabulary.merges.end(), random);
  return vocabulary;
}

TEST(Bpe, EqualsThePlainDefinitionForShortAndLongPieces) {
  std::mt19937 random(11);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Vocabulary vocabulary = shuffled_vocabulary(seed);
    const BpeTokenizer tokenizer(vocabulary);
    for (int round = 0; round < 60; ++round) {
      std::string piece;  // letters only, so one pre-token; up to 16 bytes are cached, above 32 bytes the heap is used
      for (size_t length = 1 + random() % (round % 3 ? 40 : 300); piece.size() < length;)
        piece.append(1 + random() % 4, "abc"[random() % 3]);
      const std::vector<int32_t> expected = merge_plainly(vocabulary, piece);
      ASSERT_EQ(tokenizer.encode(piece), expected) << piece;
      ASSERT_EQ(tokenizer.encode(piece), expected) << "the second time: " << piece;
    }
  }
}

// More distinct pre-tokens than the cache can hold, so that it is filled, grown and cleared.
TEST(Bpe, RememberedPiecesStayRightWhenTheMemoryOverflows) {
  const BpeTokenizer warm(shuffled_vocabulary(1)), cold(shuffled_vocabulary(1));
  std::string text;
  for (int i = 0; i < 400000; ++i) {
    text += ' ';
    for (int n = i; n > 0; n /= 3) text += "abc"[n % 3];
  }
  const std::vector<int32_t> ids = warm.encode(text);
  EXPECT_EQ(warm.decode(ids), text);
  EXPECT_EQ(warm.encode(text), ids);
  std::vector<int32_t> pieces;
  for (size_t at = text.size() - 2000, end = text.size(); at < end;) {
    const size_t stop = static_cast<size_t>(pretoken_end(text.data() + at, text.data() + end) - text.data());
    const std::vector<int32_t> piece = merge_plainly(cold.vocabulary(), text.substr(at, stop - at));
    EXPECT_EQ(warm.encode(text.substr(at, stop - at)), piece);
    at = stop;
  }
}

TEST(Bpe, ThreadsShareATokenizer) {
  const BpeTokenizer tokenizer(shuffled_vocabulary(2));
  std::vector<std::string> texts(8);
  std::mt19937 random(5);
  for (std::string& text : texts) {
    for (int i = 0; i < 50000; ++i) text += "abc "[random() % 4];
  }
  std::vector<std::vector<int32_t>> expected, got(texts.size());
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i) threads.emplace_back([&, i] { got[i] = tokenizer.encode(texts[i]); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, expected);
}

// Takes about 0.3 s each. A quadratic algorithm would take hours and exceed the test's time limit.
TEST(Bpe, HostileTextTakesNoQuadraticTime) {
  const BpeTokenizer tokenizer(shuffled_vocabulary(3));
  std::mt19937 random(1);
  std::vector<std::string> texts = {std::string(1000000, ' '), std::string(1000000, 'a'), std::string(1000000, '\n'), "", ""};
  for (int i = 0; i < 1000000; ++i) texts[3] += "abc"[random() % 3];
  for (int i = 0; i < 500000; ++i) texts[4] += "a ";
  for (const std::string& text : texts) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

void expect_cases(const Tokenizer& tokenizer, const std::string& path, size_t lines) {
  std::ifstream file(path);
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json example = parse_json(line, path + ":" + std::to_string(count + 1));
    const auto text = example["text"].get<std::string>();
    const std::vector<int32_t> ids = tokenizer.encode(text);
    ASSERT_EQ(ids, example["ids"].get<std::vector<int32_t>>()) << path << ":" << count + 1;
    ASSERT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_EQ(count, lines);
}

// Compares with ids of the Python `tokenizers` library.
TEST(Bpe, Gpt2EqualsTheReferenceOnEveryLine) {
  const std::string cases = test::golden("tokenizer/gpt2_cases.jsonl"), files = test::data_set("gpt2-bpe");
  BASED_NEEDS_FILE(cases);
  BASED_NEEDS_FILE(files);
  const auto tokenizer = make_tokenizer(files);
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  expect_cases(*tokenizer, cases, 2987);
}

TEST(Bpe, TrainedVocabularyEqualsTheReferenceOnEveryLine) {
  const std::string folder = test::golden("tokenizer/shakespeare1024");
  BASED_NEEDS_FILE(folder);
  const auto from_json = make_tokenizer(folder);
  expect_cases(*from_json, folder + "/cases.jsonl", 200);
  const BpeTokenizer from_two(parse_vocab_and_merges(read_file(folder + "/vocab.json"), "v", read_file(folder + "/merges.txt"), "m"));
  expect_cases(from_two, folder + "/cases.jsonl", 200);
  EXPECT_EQ(from_two.hash(), from_json->hash());
}

TEST(Bpe, TinyShakespeareWholeHasTheReferenceCounts) {
  const std::string digest = test::golden("tokenizer/tinyshakespeare_digest.json"), text = test::data_set("tinyshakespeare/input.txt");
  BASED_NEEDS_FILE(digest);
  BASED_NEEDS_FILE(text);
  BASED_NEEDS_FILE(test::data_set("gpt2-bpe"));
  const Json expected = parse_json(read_file(digest), digest);
  const std::map<std::string, std::string> folders = {{"gpt2", test::data_set("gpt2-bpe")},
                                                      {"shakespeare1024", test::golden("tokenizer/shakespeare1024")}};
  for (const auto& [name, folder] : folders) {
    const std::vector<int32_t> ids = make_tokenizer(folder)->encode(read_file(text));
    EXPECT_EQ(ids.size(), expected[name]["count"].get<size_t>());
    EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + 16), expected[name]["first"].get<std::vector<int32_t>>());
    EXPECT_EQ(std::vector<int32_t>(ids.end() - 16, ids.end()), expected[name]["last"].get<std::vector<int32_t>>());
  }
}

}  // namespace bpe_test
}  // namespace based
