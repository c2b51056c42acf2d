#include "based/serve/protocol/utf8_text.h"

#include <gtest/gtest.h>

#include <random>

#include "based/core/utf8.h"

namespace based {
namespace utf8_text_test {

const std::string kMark = "\xef\xbf\xbd";

// The Unicode Standard, section 3.9, tables 3-8 to 3-11.
TEST(Utf8Text, BytesThatAreNoCharacterAreReplacedAsUnicodeRecommends) {
  EXPECT_EQ(well_formed("a é \xe2\x82\xac \U0001f600"), "a é € \U0001f600");
  EXPECT_EQ(well_formed("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), kMark + kMark + kMark + kMark + kMark + kMark + kMark + kMark + "A");
  EXPECT_EQ(well_formed("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), kMark + kMark + kMark + kMark + kMark + kMark + kMark + kMark + "A");
  EXPECT_EQ(well_formed("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), kMark + kMark + kMark + kMark + kMark + "A" + kMark + kMark + "B");
  EXPECT_EQ(well_formed("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), kMark + kMark + kMark + kMark + "A");
  EXPECT_EQ(well_formed("a\xe2\x82"), "a" + kMark);
}

TEST(Utf8Text, IsTheSameInOnePieceAndInMany) {
  std::mt19937 random(3);
  const std::string bytes = "a\x80\xbf\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xed\xa0";
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (unsigned i = 0; i < 1 + random() % 12; ++i) text += bytes[random() % bytes.size()];
    Utf8Text whole, pieces;
    const std::string expected = whole.push(text);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min<size_t>(1 + random() % 3, text.size() - at);
      out += pieces.push(std::string_view(text).substr(at, length));
      at += length;
    }
    ASSERT_EQ(out, expected) << round;
    ASSERT_TRUE(is_valid_utf8(out));
    const std::string replaced = well_formed(text);
    ASSERT_TRUE(replaced == expected || replaced == expected + kMark) << round;
  }
}

TEST(Utf8Text, AnIncompleteCharacterAtTheEndIsNoText) {
  Utf8Text text;
  EXPECT_EQ(text.push("a\xe2"), "a");
  EXPECT_EQ(text.push("\x82"), "");
  EXPECT_EQ(text.push("\xac"
                      "b\xf0\x9f"),
            "€b");
}

TEST(CharacterCounter, GivesTheCharacterThatHoldsATokensFirstByte) {
  CharacterCounter counter;
  EXPECT_EQ(counter.push("ab"), 0);
  EXPECT_EQ(counter.push("\xe2\x82"), 2);
  EXPECT_EQ(counter.push("\xac"), 2);
  EXPECT_EQ(counter.push("c"), 3);
  EXPECT_EQ(counter.push("\xc3"), 4);
  EXPECT_EQ(counter.push(""), 4);
  EXPECT_EQ(counter.push("d"), 5) << "the byte before it is a character of its own";
  EXPECT_EQ(counter.push("é"), 6);
}

}  // namespace utf8_text_test
}  // namespace based
