// Python's functions of text.
#include "based/eval/tasks/python_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace based {
namespace python_text_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PythonText, StripsAllWhiteSpaceOfUnicode) {
  EXPECT_EQ(python_strip("\t\n a b\u00a0\u3000\x1c\u0085"), "a b");
  EXPECT_EQ(python_rstrip(" a \u2003"), " a");
  EXPECT_EQ(python_strip(" \u2028 "), "");
  EXPECT_EQ(python_strip("\u200b"), "\u200b");  // zero width space is no white space
}

TEST(PythonText, Splits) {
  EXPECT_THAT(python_split(" a\u00a0 bc\n"), ElementsAre("a", "bc"));
  EXPECT_THAT(python_split(" \n"), IsEmpty());
  EXPECT_EQ(count_split_pieces("a b\t\nc"), 3);
  EXPECT_EQ(count_split_pieces(" a "), 3);  // an empty piece before and after
  EXPECT_EQ(count_split_pieces(""), 1);
}

TEST(PythonText, LowersUnicode) {
  EXPECT_EQ(python_lower("ÉTÉ Straße ŁÓDŹ ЖУК"), "été straße łódź жук");
  EXPECT_EQ(python_lower("ΣΑΣ Α\u0301Σ. Σ 中Σ"), "σας α\u0301ς. σ 中σ");  // final sigma only after a letter with case
  EXPECT_EQ(python_lower("İ"), "i\u0307");
  EXPECT_EQ(python_lower(char32_t{0x1e9e}), char32_t{0xdf});
  EXPECT_EQ(python_lower("A\xff\xc3"), "a\xff\xc3");  // invalid bytes stay
}

TEST(PythonText, CapitalizesTheFirstCharacterAlone) {
  EXPECT_EQ(python_capitalize("the woman from NASA"), "The woman from nasa");
  EXPECT_EQ(python_capitalize("éTé"), "Été");
  const std::pair<const char*, const char*> titles[] = {{"ßA", "Ssa"}, {"ǆA", "ǅa"}, {"ﬁA", "Fia"},
                                                        {"ŉA", "ʼNa"}, {"ςA", "Σa"}, {"µA", "Μa"},
                                                        {"აA", "აa"},  {"ᾳA", "ᾼa"}, {"ΐA", "\u0399\u0308\u0301a"}};
  for (const auto& [text, title] : titles) EXPECT_EQ(python_capitalize(text), title) << "as Python 3.11";
  EXPECT_EQ(python_capitalize(" b C"), " b c");
  EXPECT_EQ(python_capitalize(""), "");
}

TEST(PythonText, CountsAndReplaces) {
  EXPECT_EQ(count_characters("aé中😀"), 4);
  EXPECT_EQ(count_characters("e\u0301"), 2);
  EXPECT_EQ(replace_all("aaa", "aa", "b"), "ba");
  EXPECT_EQ(replace_all("x  y   z", "  ", " "), "x y  z");  // one pass
}

}  // namespace python_text_test
}  // namespace based
