// Regular expressions: any pattern becomes an automaton all of whose states lead to a match, or it is refused. A zero byte separates the
// pattern from a text; the text is also a list of choices, one a line.
#include <algorithm>
#include <string>
#include <vector>

#include "based/serve/constraints/constraint.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

// Follows the text as long as it is permitted, then searches for a match from there.
void check(const ByteAutomaton& automaton, std::string_view text) {
  int32_t state = 0;
  for (const char c : text) {
    const int32_t next = automaton.next(state, static_cast<uint8_t>(c));
    if (next == ByteAutomaton::kDead) break;
    require(next >= 0 && next < automaton.states(), "a transition leads to a state");
    state = next;
  }
  std::vector<int32_t> pending{state};
  std::vector<bool> seen(static_cast<size_t>(automaton.states()));
  bool ends = false;
  while (!pending.empty() && !ends) {
    state = pending.back();
    pending.pop_back();
    if (seen[static_cast<size_t>(state)]) continue;
    seen[static_cast<size_t>(state)] = true;
    ends = automaton.accepting(state);
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t next = automaton.next(state, static_cast<uint8_t>(byte));
      if (next != ByteAutomaton::kDead) pending.push_back(next);
    }
  }
  require(ends, "a match can be reached from every state");
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  static const ByteTokenizer tokenizer;
  static const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  const std::string_view both = as_text(input);
  const std::string_view pattern = both.substr(0, both.find('\0')), text = both.substr(std::min(pattern.size() + 1, both.size()));
  const RegexLimits limits{.nfa_states = 2000, .dfa_states = 500, .steps = 100'000};
  accept_or_refuse([&] { check(compile_regex(pattern, "regex", limits), text); });
  const std::vector<std::string> choices = lines_of(text);
  accept_or_refuse([&] {
    const std::shared_ptr<Constraint> constraint = Constraint::from_choices(trie, choices, "choice");
    for (const std::string& choice : choices) require(constraint->automaton().matches(choice), "a choice matches");
    check(constraint->automaton(), pattern);
    ConstrainedSequence sequence(constraint);
    for (const char c : choices.front()) {
      const auto id = static_cast<uint8_t>(c);
      require((sequence.mask()[id / 64] >> id % 64 & 1U) != 0 && sequence.advance(id), "each byte of a choice is allowed");
    }
    require(sequence.accepting() && sequence.advance(256), "the end is allowed after a choice");
  });
}

}  // namespace based
