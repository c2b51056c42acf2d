#include "based/core/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "based/core/json.h"

namespace based {
namespace text_test {

using std::string_literals::operator""s;

TEST(FormatNumber, OfAnySizeIsWhole) {
  EXPECT_EQ(format_number(3.14159, 3), "3.142");
  EXPECT_EQ(format_number(-2.5, 0), "-2");
  EXPECT_EQ(format_number(999'999'999'999'999.0, 1), "999999999999999.0");
  EXPECT_EQ(format_number(1e15, 1), "1.00e+15");
  EXPECT_EQ(format_number(3.4e91, 2), "3.40e+91");
  EXPECT_EQ(format_number(-1e300, 4), "-1.0000e+300");
  EXPECT_EQ(format_number(std::numeric_limits<double>::max(), 0), "1.80e+308");
  EXPECT_EQ(format_number(0.5, 100).size(), 102U) << "as many digits as are asked for";
  const double infinite = std::numeric_limits<double>::infinity(), none = std::nan("");
  EXPECT_EQ(format_number(infinite, 2), "inf");
  EXPECT_EQ(format_number(-infinite, 2), "-inf");
  EXPECT_EQ(format_number(none, 2), "nan");
  EXPECT_EQ(format_number(std::copysign(none, -1), 2), "nan");
}

// For every exponent, parsing the text gives the number, up to the printed digits.
TEST(FormatNumber, ReadsBackAtEveryExponent) {
  for (int exponent = -300; exponent <= 308; ++exponent) {
    const double value = 1.2345 * std::pow(10, exponent - 1);
    const double read = std::stod(format_number(value, 6));
    EXPECT_NEAR(read, value, std::max(5e-7, value * 1e-6)) << exponent;
  }
}

TEST(ShortenedLines, KeepTheirBeginningAndEnd) {
  EXPECT_EQ(shortened_lines("one\ntwo\n"), "one\ntwo\n");
  EXPECT_EQ(shortened_lines(""), "");
  const std::string text = "no file '" + std::string(100'000, 'a') + "'; name another", shown = shortened_lines(text + "\nnext");
  EXPECT_LT(shown.size(), 1100U);
  EXPECT_EQ(shown.substr(0, 12), "no file 'aaa");
  EXPECT_NE(shown.find("… (99024 bytes) …"), std::string::npos) << shown;
  EXPECT_NE(shown.find("aaa'; name another\nnext"), std::string::npos) << shown;
}

TEST(ShortenedLines, SplitNoCharacter) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "é";
  for (size_t limit = 10; limit < 16; ++limit) EXPECT_EQ(escape_controls(shortened_lines(text, limit)), shortened_lines(text, limit));
}

TEST(ShortenedLines, ManyLinesAreCutToo) {
  std::string text = "first\n";
  for (int i = 0; i < 100'000; ++i) text += "\n";
  const std::string shown = shortened_lines(text + "last");
  EXPECT_LT(shown.size(), 21'000U);
  EXPECT_EQ(shown.substr(0, 6), "first\n");
  EXPECT_EQ(shown.substr(shown.size() - 4), "last");
}

TEST(EscapeControls, LeavesNothingThatSteersATerminal) {
  EXPECT_EQ(escape_controls("\x1b[2Jred\r\n"), "\\u001b[2Jred\\u000d\\u000a");
  EXPECT_EQ(escape_controls("a\0b\x7f"s), "a\\u0000b\\u007f");
  EXPECT_EQ(escape_controls("\xc2\x9b"
                            "31m"),
            "\\u009b31m")
      << "the control sequence introducer in one character";
  EXPECT_EQ(escape_controls("\x9b\xff"), "\\x9b\\xff") << "and in one byte";
  EXPECT_EQ(escape_controls("one\ntwo\t", true), "one\ntwo\\u0009");
}

TEST(EscapeControls, LeavesTextAsItIs) {
  const std::string text = "naïve café, 日本, \xc2\xa0 '\\x' 𝄞";
  EXPECT_EQ(escape_controls(text), text);
}

TEST(EscapeControls, OfALineOfJsonMeansTheSame) {
  const Json json{{"a\x1b", "\x7f\xc2\x80 b"}};
  EXPECT_EQ(parse_json(escape_controls(dump_json(json)), "line"), json);
}

}  // namespace text_test
}  // namespace based
