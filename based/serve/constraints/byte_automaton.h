// Deterministic automata over bytes, made from regular expressions or from lists of strings.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/error.h"

namespace based {

// Limits of a pattern. Beyond them, compile_regex throws UsageError.
struct RegexLimits {
  int64_t pattern_bytes = 16 << 10;
  int depth = 64;               // nested groups
  int64_t repeat = 1000;        // the largest number in {m,n}
  int64_t nfa_states = 20'000;  // after repetitions are expanded
  int64_t dfa_states = 10'000;
  int64_t steps = 10'000'000;  // visited NFA states while the automaton is made
};

// State 0 is the start. Only states from which the end can be reached are kept, so every path can be completed.
class ByteAutomaton {
 public:
  static constexpr int32_t kDead = -1;

  int32_t next(int32_t state, uint8_t byte) const {
    const uint16_t to = transitions_[static_cast<size_t>(state) * classes_ + class_of_[byte]];
    return to == kNone ? kDead : to;
  }
  bool accepting(int32_t state) const { return accepting_[static_cast<size_t>(state)] != 0; }
  bool complete(int32_t state) const { return complete_[static_cast<size_t>(state)] != 0; }  // accepting, and no byte may follow
  int32_t states() const { return static_cast<int32_t>(accepting_.size()); }
  bool matches(std::string_view text) const;

 private:
  friend class AutomatonBuilder;
  static constexpr uint16_t kNone = 0xffff;

  std::array<uint8_t, 256> class_of_{};  // bytes of one class have the same transitions in every state
  size_t classes_ = 0;                   // at most 256
  std::vector<uint16_t> transitions_;    // [states, classes]
  std::vector<uint8_t> accepting_, complete_;
};

// Compiles a pattern that must match the whole text. Syntax, over UTF-8 characters: literals; `.` (all but a line feed); [...] and [^...]
// with ranges; \d \w \s and their complements (ASCII); \n \r \t \f \v \0 \xHH \uHHHH and escaped punctuation; (...), (?:...),
// (?P<name>...); | * + ? {m} {m,} {m,n}, also with a further `?`, which does not change the set of matches; ^ at the start and $ at the
// end, which change nothing. Backreferences, lookaround, word boundaries and flags are refused. Throws UsageError as "<field>: <reason> at
// byte N".
ByteAutomaton compile_regex(std::string_view pattern, const std::string& field, const RegexLimits& limits = {});

// The automaton that accepts exactly these strings, which may have 60,000 bytes together.
ByteAutomaton compile_choices(std::span<const std::string> choices);

}  // namespace based
