// The syntax tree of a regular expression over Unicode characters.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "based/serve/constraints/byte_automaton.h"

namespace based {

struct CharRange {
  char32_t first = 0, last = 0;  // both included
};

struct RegexNode {
  enum class Kind { empty, chars, sequence, alternatives, repeat };
  Kind kind = Kind::empty;
  std::vector<CharRange> chars;   // sorted and disjoint; empty: no character matches
  std::vector<int32_t> children;  // indices of nodes; `repeat` has one
  int64_t least = 0, most = 0;    // for `repeat`; most < 0: no limit
};

struct Regex {
  std::vector<RegexNode> nodes;
  int32_t root = 0;
};

// See compile_regex in byte_automaton.h.
Regex parse_regex(std::string_view pattern, const std::string& field, const RegexLimits& limits);

}  // namespace based
