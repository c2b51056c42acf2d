// The three character classes of GPT-2's splitting pattern, pinned to Unicode 16.0: letters (general category L), numbers (N) and white
// space (White_Space). The table is our own because a library's changes with its version: PCRE2 10.42 carries Unicode 14, where 9,272
// letters are missing, and its \s takes U+180E for a space.
#pragma once
#include <cstdint>

namespace based {

enum class CharClass : uint8_t { other, letter, number, space };

// One entry a code point, 0 .. 0x10ffff.
const CharClass* char_classes();

}  // namespace based
