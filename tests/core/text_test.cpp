#include "based/core/text.h"

#include <gtest/gtest.h>

#include "based/core/json.h"

namespace based {
namespace {

using std::string_literals::operator""s;

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

}  // namespace
}  // namespace based
