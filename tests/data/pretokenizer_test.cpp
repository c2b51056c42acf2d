#include "based/data/pretokenizer.h"

#include <gtest/gtest.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "based/core/utf8.h"
#include "based/data/unicode_classes.h"

namespace based {
namespace pretokenizer_test {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* stop = pretoken_end(at, end);
    EXPECT_GT(stop, at);
    EXPECT_LE(stop, end);
    pieces.emplace_back(at, stop);
    at = stop;
  }
  return pieces;
}

// The published pattern in a regular-expression library, as an independent implementation. \s is spelled out.
class Oracle {
 public:
  Oracle() {
    const std::string space = R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
    const std::string pattern =
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" + space + "]+|[" + space + "]+(?![^" + space + "])|[" + space + "]+";
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    EXPECT_NE(code_, nullptr) << "at " << offset;
    EXPECT_EQ(pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE), 0);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Oracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  std::vector<std::string> split(const std::string& text) const {
    std::vector<std::string> pieces;
    PCRE2_SIZE at = 0;
    while (at < text.size()) {
      if (pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, match_, nullptr) < 0) break;
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_);
      EXPECT_EQ(ends[0], at);
      pieces.push_back(text.substr(ends[0], ends[1] - ends[0]));
      at = ends[1];
    }
    EXPECT_EQ(at, text.size());
    return pieces;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

std::string utf8(const std::vector<char32_t>& codes) {
  std::string text;
  for (const char32_t code : codes) append_utf8(code, text);
  return text;
}

// Characters whose class has not changed since Unicode 5, so that every library agrees.
const std::vector<char32_t> kOld = {'a',    'Z',    's',    't',    'l',    'r',    'e',    'v',     'm',     'd',    '0',
                                    '9',    '.',    '_',    '\'',   '\'',   ' ',    ' ',    ' ',     '\n',    '\t',   '\r',
                                    0x0b,   0x1c,   0x7f,   0x85,   0xa0,   0xb2,   0xbd,   0xe9,    0x301,   0x3b1,  0x416,
                                    0x5d0,  0x661,  0x905,  0x966,  0x1680, 0x180e, 0x2003, 0x2009,  0x200b,  0x2014, 0x2028,
                                    0x202f, 0x2160, 0x3000, 0x3042, 0x4e2d, 0xac00, 0xfeff, 0x1d400, 0x1d7d8, 0x20000};

TEST(Pretokenizer, EqualsTheRegularExpressionOnRandomText) {
  const Oracle oracle;
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    // Every second text is ASCII only. Runs of one character are frequent.
    const size_t choices = round % 2 ? 25 : kOld.size();
    std::vector<char32_t> codes;
    for (size_t length = random() % 24; codes.size() < length;) codes.insert(codes.end(), 1 + random() % 3, kOld[random() % choices]);
    const std::string text = utf8(codes);
    ASSERT_EQ(split(text), oracle.split(text)) << text;
  }
}

TEST(Pretokenizer, ContractionsSpacesAndTheEnd) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(split("I'm we've 's"), (Pieces{"I", "'m", " we", "'ve", " '", "s"}));
  EXPECT_EQ(split("'S ''s '"), (Pieces{"'", "S", " ''", "s", " '"}));
  EXPECT_EQ(split("a  b\n c \n"), (Pieces{"a", " ", " b", "\n", " c", " \n"}));
  EXPECT_EQ(split(" "), (Pieces{" "}));
  EXPECT_EQ(split(""), Pieces{});
}

TEST(Pretokenizer, BytesThatAreNoCharacterAreSymbols) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(split("a\xff\xfe z"), (Pieces{"a", "\xff\xfe", " z"}));
  EXPECT_EQ(split("a\xe4\xb8"), (Pieces{"a", "\xe4\xb8"}));                  // cut off
  EXPECT_EQ(split("a\xed\xa0\x80"), (Pieces{"a", "\xed\xa0\x80"}));          // a surrogate
  EXPECT_EQ(split(" \xc0\x80!"), (Pieces{" \xc0\x80!"}));                    // overlong
  EXPECT_EQ(split("1\xf4\x90\x80\x80"), (Pieces{"1", "\xf4\x90\x80\x80"}));  // above 0x10ffff
}

TEST(UnicodeClasses, AreThoseOfUnicode16) {
  int letters = 0, numbers = 0, spaces = 0;
  for (int code = 0; code < 0x110000; ++code) {
    letters += char_classes()[code] == CharClass::letter;
    numbers += char_classes()[code] == CharClass::number;
    spaces += char_classes()[code] == CharClass::space;
  }
  EXPECT_EQ(letters, 141028);
  EXPECT_EQ(numbers, 1911);
  EXPECT_EQ(spaces, 25);
  EXPECT_EQ(char_classes()[0x180e], CharClass::other);   // a space in PCRE2's \s
  EXPECT_EQ(char_classes()[0x1c89], CharClass::letter);  // new in Unicode 16
}

TEST(Utf8, EveryCodeSurvivesAndEveryShortSequenceIsJudged) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    append_utf8(code, text);
    const Utf8Char c = utf8_at(text.data(), text.data() + text.size());
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(static_cast<size_t>(c.size), text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) ASSERT_EQ(utf8_at(text.data(), text.data() + cut).code, kInvalidUtf8);
  }
  EXPECT_FALSE(is_valid_utf8("\xed\xa0\x80"));
  EXPECT_FALSE(is_valid_utf8("\xc0\xaf"));
  EXPECT_FALSE(is_valid_utf8("\xe0\x80\xaf"));
  EXPECT_TRUE(is_valid_utf8("\xe2\x82\xac"));
}

}  // namespace pretokenizer_test
}  // namespace based
