// Internal to based/data: the tables of Unicode 9.0 for normalization, without Hangul syllables, which are decomposed by arithmetic.
#pragma once
#include <cstdint>
#include <span>

namespace based {

// A character, and the one or two characters that it decomposes into, which may decompose further. `second` is 0 where there is one.
struct Decomposition {
  char32_t whole, first, second;
};
struct CombiningClass {
  char32_t first, last;  // a range of characters
  uint8_t value;
};

// All sorted by `whole`. The pairs of composed_pairs() are also composed; those of other_pairs() and the singletons are not.
std::span<const Decomposition> composed_pairs();
std::span<const Decomposition> other_pairs();
std::span<const Decomposition> singletons();

// Sorted ranges of the characters whose class is not 0.
std::span<const CombiningClass> combining_classes();

}  // namespace based
