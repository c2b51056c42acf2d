#include "based/data/nfc.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "based/core/utf8.h"
#include "based/data/nfc_tables.h"

namespace based {
namespace nfc_test {

std::string utf8(std::initializer_list<char32_t> codes) {
  std::string text;
  for (const char32_t code : codes) append_utf8(code, text);
  return text;
}

// Examples of UAX #15 and of the edges of its rules.
TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(to_nfc(utf8({'e', 0x301})), utf8({0xe9}));
  EXPECT_EQ(to_nfc(utf8({0x212b})), utf8({0xc5}));                          // a singleton: angstrom to A with ring
  EXPECT_EQ(to_nfc(utf8({0x1e69})), utf8({0x1e69}));                        // s with dot below and dot above
  EXPECT_EQ(to_nfc(utf8({'s', 0x307, 0x323})), utf8({0x1e69}));             // marks are ordered first
  EXPECT_EQ(to_nfc(utf8({0x1e0b, 0x323})), utf8({0x1e0d, 0x307}));          // d: only the dot below composes then
  EXPECT_EQ(to_nfc(utf8({0x958})), utf8({0x915, 0x93c}));                   // excluded from composition
  EXPECT_EQ(to_nfc(utf8({'a', 0x305, 0x301})), utf8({'a', 0x305, 0x301}));  // blocked by a mark of the same class
  EXPECT_EQ(to_nfc(utf8({'a', 0x327, 0x301})), utf8({0xe1, 0x327}));        // not blocked by one of a lower class
  EXPECT_EQ(to_nfc(utf8({'a', 'b', 0x301})), utf8({'a', 'b', 0x301}));
  EXPECT_EQ(to_nfc(utf8({0x301, 'a'})), utf8({0x301, 'a'}));
  EXPECT_EQ(to_nfc(utf8({0x9c7, 0x9be})), utf8({0x9cb}));                 // two starters
  EXPECT_EQ(to_nfc(utf8({0x1100, 0x1161, 0x11a8})), utf8({0xac01}));      // Hangul
  EXPECT_EQ(to_nfc(utf8({0xac00, 0x11a7})), utf8({0xac00, 0x11a7}));      // not a trailing consonant
  EXPECT_EQ(to_nfc(utf8({0x11935, 0x11930})), utf8({0x11935, 0x11930}));  // composed since Unicode 13 only
}

TEST(Nfc, LeavesOtherBytesAlone) {
  EXPECT_EQ(to_nfc("\xff e\xcc"), "\xff e\xcc");
  EXPECT_EQ(to_nfc("e\xff\xcc\x81"), "e\xff\xcc\x81");  // the byte stands between letter and mark
  EXPECT_EQ(to_nfc(""), "");
  EXPECT_TRUE(is_nfc_at_sight("na\xc3\xafve"));
  EXPECT_FALSE(is_nfc_at_sight("e\xcc\x81"));
}

TEST(Nfc, ComposesEachPairOfItsTables) {
  size_t pairs = 0;
  for (const Decomposition& d : composed_pairs()) {
    EXPECT_EQ(to_nfc(utf8({d.first, d.second})), utf8({d.whole})) << std::hex << static_cast<uint32_t>(d.whole);
    ++pairs;
  }
  EXPECT_EQ(pairs, 940u);
  for (const auto& table : {other_pairs(), singletons()})
    for (const Decomposition& d : table) EXPECT_NE(to_nfc(utf8({d.whole})), utf8({d.whole})) << std::hex << static_cast<uint32_t>(d.whole);
}

TEST(Nfc, IsIdempotentAndDoesNotDependOnWhereATextWasNormalizedBefore) {
  std::mt19937 random(1);
  std::vector<char32_t> codes{'a', 'e', 'o', 'A', ' ', 0x1100, 0x1161, 0x11a8, 0xac00, 0x915, 0x93c, 0x9c7, 0x9be, 0x1e69, 0x212b};
  for (char32_t c = 0x300; c < 0x362; ++c) codes.push_back(c);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (int k = 0; k < 10; ++k) append_utf8(codes[random() % codes.size()], text);
    const std::string once = to_nfc(text);
    EXPECT_EQ(to_nfc(once), once);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      if (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) continue;  // inside a character
      EXPECT_EQ(to_nfc(to_nfc(text.substr(0, cut)) + text.substr(cut)), once);
    }
  }
}

}  // namespace nfc_test
}  // namespace based
