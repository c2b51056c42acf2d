// The three character classes of GPT-2's splitting pattern, fixed to Unicode 16.0: letters (general category L), numbers (N) and white
// space (White_Space). A library's table would change with its version: PCRE2 10.42 has Unicode 14, which lacks 9,272 letters, and its \s
// includes U+180E.
#pragma once
#include <cstdint>

namespace based {

enum class CharClass : uint8_t { other, letter, number, space };

// One entry per code point, 0 .. 0x10ffff.
const CharClass* char_classes();

}  // namespace based
