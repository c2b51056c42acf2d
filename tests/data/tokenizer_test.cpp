#include "based/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "based/core/utf8.h"
#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace tokenizer_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string random_bytes(std::mt19937& random, size_t most) {
  std::string text(random() % (most + 1), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::unique_ptr<BpeTokenizer> small_bpe(std::vector<std::string> specials = {}) {
  BpeTrainer trainer({.vocab_size = 400, .min_frequency = 1, .specials = std::move(specials)});
  trainer.add("the cat sat on the mat, and the other cat sat there; that is the end of the matter. naïve — ça va 中文中文\n");
  return std::make_unique<BpeTokenizer>(trainer.train());
}

TEST(ByteTokenizer, IdsAreBytes) {
  const ByteTokenizer bytes;
  EXPECT_THAT(bytes.encode(std::string("a\0\xff", 3)), ElementsAre(97, 0, 255));
  EXPECT_EQ(bytes.vocab_size(), 257);
  EXPECT_EQ(bytes.end_of_text(), 256);
}

TEST(Tokenizer, DecodeIsTheInverseForAnyBytes) {
  std::mt19937 random(7);
  const ByteTokenizer bytes;
  const auto bpe = small_bpe({"<|endoftext|>"});
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_bytes(random, round % 10 ? 60 : 5000);
    for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(&bytes), static_cast<const Tokenizer*>(bpe.get())}) {
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text, Specials::recognised)), text);
    }
  }
}

TEST(Tokenizer, SpecialTokensAreRecognisedOnlyOnRequest) {
  const auto bpe = small_bpe({"<|endoftext|>", "<|end", "<|endoftext|>x"});
  const std::string text = "the<|endoftext|>cat<|endoftext|>x<|end";
  for (const int32_t id : bpe->encode(text)) EXPECT_FALSE(bpe->is_special(id));
  std::vector<int32_t> specials;
  const std::vector<int32_t> ids = bpe->encode(text, Specials::recognised);
  for (const int32_t id : ids) {
    if (bpe->is_special(id)) specials.push_back(id);
  }
  EXPECT_THAT(specials, ElementsAre(0, 2, 1));  // the longest match wins
  EXPECT_EQ(bpe->decode(ids), text);
  EXPECT_EQ(bpe->special("<|end"), 1);
  EXPECT_EQ(bpe->special("the"), std::nullopt);
}

TEST(Tokenizer, DecodingAnIdOutsideTheVocabularyIsAnError) {
  const ByteTokenizer bytes;
  for (const int32_t id : {-1, 257, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> ids = {97, id};
    EXPECT_THAT(message_of<Error>([&] { bytes.decode(ids); }),
                HasSubstr("token id " + std::to_string(id) + " is outside the vocabulary of 257"));
  }
}

TEST(Tokenizer, SavedAndReadAgainGivesTheSameIdsAndHash) {
  const TemporaryFolder folder;
  const auto bpe = small_bpe({"<|endoftext|>"});
  bpe->save(folder.file("a/b"));
  const auto again = make_tokenizer(folder.file("a/b"));
  EXPECT_EQ(again->hash(), bpe->hash());
  // vocab.json and merges.txt alone give the same tokenizer.
  std::filesystem::remove(folder.file("a/b/tokenizer.json"));
  EXPECT_EQ(make_tokenizer(folder.file("a/b"))->hash(), bpe->hash());
  const std::string text = "the cat <|endoftext|> 中文 \xff";
  EXPECT_EQ(again->encode(text), bpe->encode(text));
  EXPECT_EQ(again->end_of_text(), 0);
  EXPECT_NE(small_bpe()->hash(), bpe->hash());
}

TEST(Tokenizer, BytesAreSavedAsAByteLevelVocabularyWithoutMerges) {
  const TemporaryFolder folder;
  ByteTokenizer().save(folder.file("bytes"));
  const auto again = make_tokenizer(folder.file("bytes"));
  EXPECT_NE(dynamic_cast<const ByteTokenizer*>(again.get()), nullptr);
  EXPECT_EQ(again->hash(), make_tokenizer("bytes")->hash());
}

TEST(IncrementalDecoder, NeverCutsACharacterAndLosesNothing) {
  std::mt19937 random(3);
  const ByteTokenizer bytes;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) {
      static const std::vector<std::string> pieces = {"a", "é", "中", "🙂", "\xff", "\xe4", "\xb8", "\xf0\x9f", "\xc0", "\n"};
      text += pieces[random() % (round % 2 ? 4 : pieces.size())];
    }
    IncrementalDecoder decoder(bytes);
    std::string whole;
    for (const int32_t id : bytes.encode(text)) {
      const std::string piece = decoder.push(id);
      if (round % 2) {
        ASSERT_TRUE(is_valid_utf8(piece)) << text;
      }
      whole += piece;
      ASSERT_EQ(text.compare(0, whole.size(), whole), 0);
    }
    const std::string rest = decoder.flush();
    if (round % 2) {
      EXPECT_EQ(rest, "");
    }
    ASSERT_EQ(whole + rest, text);
  }
}

TEST(IncrementalDecoder, GivesACharacterOutWithItsLastByte) {
  const ByteTokenizer bytes;
  IncrementalDecoder decoder(bytes);
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.push(0x9f), "");
  EXPECT_EQ(decoder.push(0x99), "");
  EXPECT_EQ(decoder.push(0x82), "🙂");
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xe4), "");
  EXPECT_EQ(decoder.flush(), "\xe4");
  EXPECT_EQ(decoder.flush(), "");
}

}  // namespace tokenizer_test
}  // namespace based
