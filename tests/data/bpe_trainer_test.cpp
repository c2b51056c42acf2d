#include "based/data/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "based/core/files.h"
#include "based/data/bpe.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace bpe_trainer_test {

using ::testing::HasSubstr;

std::vector<std::string> learned(const Vocabulary& vocabulary) {
  std::vector<std::string> tokens;
  for (const Merge& merge : vocabulary.merges) tokens.push_back(vocabulary.tokens[static_cast<size_t>(merge.result)]);
  return tokens;
}

TEST(BpeTrainer, MergesTheMostFrequentPairAndOfEqualOnesTheSmallerIds) {
  BpeTrainer trainer({.vocab_size = 259, .min_frequency = 2, .specials = {}});
  // u n occurs 3 times. Then h u, u g, p un and "Ġ p" occur twice each; h (71) comes before p (79), u (84) and Ġ (220).
  trainer.add("hug hug pun pun bun");
  EXPECT_EQ(learned(trainer.train()), (std::vector<std::string>{"un", "hu", "pun"}));
}

TEST(BpeTrainer, StopsAtTheFrequencyAndAtTheSize) {
  BpeTrainer rare({.vocab_size = 300, .min_frequency = 3, .specials = {}});
  rare.add("ab ab cd");
  EXPECT_TRUE(rare.train().merges.empty());
  BpeTrainer full({.vocab_size = 257, .min_frequency = 1, .specials = {}});
  full.add("ab ab cd");
  EXPECT_EQ(full.train().tokens.size(), 257u);
}

TEST(BpeTrainer, OrderOfTheDocumentsDoesNotMatterAndLinesAreApart) {
  BpeTrainer one({.vocab_size = 300, .min_frequency = 1, .specials = {}}), two({.vocab_size = 300, .min_frequency = 1, .specials = {}});
  one.add("she sells\nsea\n\nshells\n");
  two.add("\n");
  two.add("shells\n");
  two.add("she sells\n");
  two.add("sea\n");
  const Vocabulary a = one.train(), b = two.train();
  EXPECT_EQ(a.tokens, b.tokens);
  for (const std::string& token : a.tokens) EXPECT_TRUE(token == "\n" || token.find('\n') == std::string::npos);
}

// Runs of one letter: pairs overlap themselves, and different merges can produce the same bytes.
TEST(BpeTrainer, VocabulariesOfRepetitiveTextCanBeReadAgain) {
  for (const char* text : {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababbaabba abaab aabba", "aabaabaaabaaaab aabaaba baabaaab"}) {
    BpeTrainer trainer({.vocab_size = 400, .min_frequency = 1, .specials = {"<|endoftext|>"}});
    trainer.add(text);
    const BpeTokenizer tokenizer(trainer.train());
    const TemporaryFolder folder;
    tokenizer.save(folder.path());
    const auto again = make_tokenizer(folder.path());
    EXPECT_EQ(again->hash(), tokenizer.hash());
    EXPECT_EQ(again->decode(again->encode(text)), text);
    EXPECT_LT(again->encode(text).size(), 8u);
  }
}

TEST(BpeTrainer, RefusesWhatCannotBe) {
  EXPECT_THAT(message_of<Error>([] { BpeTrainer({.vocab_size = 255, .min_frequency = 2, .specials = {}}); }), HasSubstr("vocab_size"));
  EXPECT_THAT(message_of<Error>([] { BpeTrainer({.vocab_size = 256, .min_frequency = 2, .specials = {"<s>"}}); }), HasSubstr("from 257"));
  EXPECT_THAT(message_of<Error>([] { BpeTrainer({.vocab_size = 300, .min_frequency = 0, .specials = {}}); }), HasSubstr("min_frequency"));
  for (const std::string bad : {"", "x", "\xff\xff"}) {
    EXPECT_THAT(message_of<Error>([&] { BpeTrainer({.vocab_size = 300, .min_frequency = 2, .specials = {bad}}); }), HasSubstr("specials"));
  }
  EXPECT_THAT(message_of<Error>([] {
                BpeTrainer({.vocab_size = 300, .min_frequency = 2, .specials = {"<s>", "<s>"}});
              }),
              HasSubstr("once"));
}

// In the files a special token is written as its text, and other tokens by their names, in which é is byte 0xe9.
TEST(BpeTrainer, ASpecialTokenIsNeverTheNameOfAnother) {
  for (const std::string bad : {"\u00a7", "\u00e9", "\u0120"}) {
    EXPECT_THAT(message_of<UsageError>([&] { BpeTrainer({.vocab_size = 300, .min_frequency = 2, .specials = {bad}}); }),
                HasSubstr("is the name that the tokenizer's files give to byte"));
  }
  for (const std::string special : {"user", "us", "\u0120user", "us\u00e9", "\u00e9\u00e9"}) {
    BpeTrainer trainer({.vocab_size = 300, .min_frequency = 2, .specials = {special}});
    const std::string text = "user users user us us\xe9 us\xe9 us\xe9s \xe9\xe9\xe9\xe9 \xe9\xe9\xe9\xe9 user\nuser\nuser\nuser\nuser\n";
    trainer.add(text);
    const BpeTokenizer tokenizer(trainer.train());
    const TemporaryFolder folder;
    tokenizer.save(folder.path());
    const auto again = make_tokenizer(folder.path());
    EXPECT_EQ(again->hash(), tokenizer.hash()) << special;
    EXPECT_EQ(again->decode(again->encode(text)), text) << special;
    EXPECT_EQ(again->encode(special, Specials::recognised), std::vector<int32_t>{0}) << special;
  }
}

// In the files a special token is written as its text and any other token by its name: two tokens with one name would be indistinguishable.
TEST(BpeTrainer, ATokenIsNotLearntUnderTheNameOfASpecialOne) {
  for (const std::string special : {"user", "\xc4\xa0user", "us"}) {
    BpeTrainer trainer({.vocab_size = 300, .min_frequency = 1, .specials = {special}});
    trainer.add("user user user used");
    const BpeTokenizer tokenizer(trainer.train());
    const TemporaryFolder folder;
    tokenizer.save(folder.path());
    const auto again = make_tokenizer(folder.path());
    EXPECT_EQ(again->hash(), tokenizer.hash()) << special;
    EXPECT_GT(again->vocab_size(), 258) << special;
    EXPECT_EQ(again->decode(again->encode("a user used " + special)), "a user used " + special);
    EXPECT_EQ(again->encode(special, Specials::recognised), std::vector<int32_t>{0});
  }
}

TEST(BpeTrainer, ASpecialTokenWithTheNameOfAByteIsRefused) {
  for (const char* special : {"\xc2\xa7", "\xc3\xa9", "\xc4\xa0"}) {
    const auto made = [&] { BpeTrainer({.vocab_size = 300, .min_frequency = 1, .specials = {special}}); };
    EXPECT_THAT(message_of<UsageError>(made), HasSubstr("is the name that the tokenizer's files give to byte")) << special;
  }
}

TEST(BpeTrainer, ReproducesTheReferenceFilesByteForByte) {
  const std::string text = test::data_set("tinyshakespeare/input.txt"), reference = test::golden("tokenizer/shakespeare1024");
  BASED_NEEDS_FILE(text);
  BASED_NEEDS_FILE(reference);
  BpeTrainer trainer({.vocab_size = 1024, .min_frequency = 2, .specials = {}});
  trainer.add(read_file(text));
  const TemporaryFolder folder;
  write_vocabulary(trainer.train(), folder.path());
  for (const std::string name : {"vocab.json", "merges.txt", "tokenizer.json"}) {
    EXPECT_EQ(read_file(folder.file(name)), read_file(reference + "/" + name)) << name;
  }
}

}  // namespace bpe_trainer_test
}  // namespace based
