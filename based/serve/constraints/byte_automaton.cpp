#include "based/serve/constraints/byte_automaton.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "based/core/utf8.h"
#include "based/serve/constraints/regex_parser.h"

namespace based {
namespace byte_automaton {  // a named one, since AutomatonBuilder, a friend of a public class, has members of these types

constexpr int32_t kEnd = 0;  // the state of the complete match

struct NfaEdge {
  uint8_t first = 0, last = 0;  // both included
  int32_t to = 0;
};
struct NfaState {
  std::vector<NfaEdge> edges;
  std::vector<int32_t> empty;  // states that are reached without a byte
};

struct Nfa {
  std::vector<NfaState> states;
  int32_t start = 0;
};

using ByteRange = std::pair<uint8_t, uint8_t>;

// Splits characters first .. last, whose encodings have the same length, into products of byte ranges, and calls `emit` with each.
template <class Emit>
void split_range(char32_t first, char32_t last, int size, const Emit& emit) {
  for (int i = 1; i < size; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;  // the bits of the last i bytes
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split_range(first, first | mask, size, emit);
      split_range((first | mask) + 1, last, size, emit);
      return;
    }
    if ((last & mask) != mask) {
      split_range(first, (last & ~mask) - 1, size, emit);
      split_range(last & ~mask, last, size, emit);
      return;
    }
  }
  std::string low, high;
  append_utf8(first, low);
  append_utf8(last, high);
  std::vector<ByteRange> bytes;
  bytes.reserve(low.size());
  for (size_t i = 0; i < low.size(); ++i) bytes.emplace_back(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i]));
  emit(bytes);
}

template <class Emit>
void utf8_ranges(const CharRange& range, const Emit& emit) {
  constexpr std::array<std::tuple<char32_t, char32_t, int>, 5> lengths{
      {{0, 0x7f, 1}, {0x80, 0x7ff, 2}, {0x800, 0xd7ff, 3}, {0xe000, 0xffff, 3}, {0x10000, 0x10ffff, 4}}};
  for (const auto& [first, last, size] : lengths) {
    const char32_t low = std::max(first, range.first), high = std::min(last, range.last);
    if (low <= high) split_range(low, high, size, emit);
  }
}

// Builds the automaton from the end: each function gets the state that follows and returns the state where its part starts.
class NfaBuilder {
 public:
  NfaBuilder(const Regex& regex, const std::string& field, const RegexLimits& limits) : regex_(regex), field_(field), limits_(limits) {}

  Nfa build() {
    const int32_t end = state();
    nfa_.start = part(regex_.root, end);
    return std::move(nfa_);
  }

 private:
  int32_t state() {
    if (static_cast<int64_t>(nfa_.states.size()) >= limits_.nfa_states)
      throw UsageError(field_ + ": the pattern is too large: it needs more than " + std::to_string(limits_.nfa_states) +
                       " states after its repetitions are expanded; use smaller counts");
    nfa_.states.emplace_back();
    return static_cast<int32_t>(nfa_.states.size() - 1);
  }
  NfaState& at(int32_t index) { return nfa_.states[static_cast<size_t>(index)]; }

  int32_t part(int32_t index, int32_t next) {
    const RegexNode& node = regex_.nodes[static_cast<size_t>(index)];
    switch (node.kind) {
      case RegexNode::Kind::empty: return joined({next});
      case RegexNode::Kind::chars: return chars(node.chars, next);
      case RegexNode::Kind::sequence:
        for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) next = part(*child, next);
        return next;
      case RegexNode::Kind::alternatives: {
        std::vector<int32_t> starts;
        starts.reserve(node.children.size());
        for (const int32_t child : node.children) starts.push_back(part(child, next));
        return joined(starts);
      }
      case RegexNode::Kind::repeat: return repeat(node, next);
    }
    return next;
  }

  int32_t joined(const std::vector<int32_t>& starts) {
    const int32_t join = state();
    at(join).empty = starts;
    return join;
  }

  int32_t repeat(const RegexNode& node, int32_t next) {
    const int32_t child = node.children.front();
    int32_t start = next;
    if (node.most < 0) {
      const int32_t loop = state();
      const int32_t body = part(child, loop);
      at(loop).empty = {body, next};
      start = loop;
    }
    for (int64_t i = node.least; i < node.most; ++i) start = joined({part(child, start), next});
    for (int64_t i = 0; i < node.least; ++i) start = part(child, start);
    return start == next ? joined({next}) : start;
  }

  int32_t chars(const std::vector<CharRange>& ranges, int32_t next) {
    const int32_t start = state();
    std::map<std::tuple<uint8_t, uint8_t, int32_t>, int32_t> shared;  // continuation bytes and their target -> their state
    for (const CharRange& range : ranges) {
      utf8_ranges(range, [&](const std::vector<ByteRange>& bytes) {
        int32_t to = next;
        for (size_t i = bytes.size() - 1; i > 0; --i) {
          const auto [found, fresh] = shared.try_emplace({bytes[i].first, bytes[i].second, to}, 0);
          if (fresh) {
            const int32_t made = state();
            at(made).edges.push_back({bytes[i].first, bytes[i].second, to});
            found->second = made;
          }
          to = found->second;
        }
        at(start).edges.push_back({bytes[0].first, bytes[0].second, to});
      });
    }
    return start;
  }

  const Regex& regex_;
  const std::string& field_;
  const RegexLimits& limits_;
  Nfa nfa_;
};

struct SetHash {
  size_t operator()(const std::vector<int32_t>& set) const {
    size_t hash = set.size();
    for (const int32_t value : set) hash = (hash ^ static_cast<size_t>(value)) * 0x9e3779b97f4a7c15U;
    return hash ^ hash >> 29U;
  }
};

}  // namespace byte_automaton
using namespace byte_automaton;

class AutomatonBuilder {
 public:
  // The subset construction.
  static ByteAutomaton determined(const Nfa& nfa, const std::string& field, const RegexLimits& limits) {
    AutomatonBuilder builder(nfa, field, limits);
    builder.find_classes();
    builder.add(builder.closure({nfa.start}));
    for (size_t i = 0; i < builder.sets_.size(); ++i) builder.expand(i);
    builder.keep_live();
    return std::move(builder.made_);
  }

  static ByteAutomaton of_choices(std::span<const std::string> choices) {
    ByteAutomaton made;
    std::array<bool, 256> used{};
    for (const std::string& choice : choices)
      for (const char c : choice) used[static_cast<uint8_t>(c)] = true;
    size_t classes = std::all_of(used.begin(), used.end(), [](bool is) { return is; }) ? 0 : 1;  // class 0: bytes of no choice
    for (size_t byte = 0; byte < used.size(); ++byte) made.class_of_[byte] = static_cast<uint8_t>(used[byte] ? classes++ : 0);
    made.classes_ = classes;
    const auto add_state = [&made, classes] {
      made.transitions_.insert(made.transitions_.end(), classes, ByteAutomaton::kNone);
      made.accepting_.push_back(0);
      made.complete_.push_back(1);
      return made.accepting_.size() - 1;
    };
    add_state();
    for (const std::string& choice : choices) {
      size_t state = 0;
      for (const char c : choice) {
        const size_t slot = state * classes + made.class_of_[static_cast<uint8_t>(c)];
        if (made.transitions_[slot] == ByteAutomaton::kNone) {
          const size_t fresh = add_state();
          BASED_ASSERT(fresh < ByteAutomaton::kNone);
          made.transitions_[slot] = static_cast<uint16_t>(fresh);
        }
        made.complete_[state] = 0;
        state = made.transitions_[slot];
      }
      made.accepting_[state] = 1;
    }
    return made;
  }

 private:
  AutomatonBuilder(const Nfa& nfa, const std::string& field, const RegexLimits& limits)
      : nfa_(nfa), field_(field), limits_(limits), marks_(nfa.states.size(), 0) {}

  void find_classes() {
    std::array<bool, 257> starts{};
    for (const NfaState& state : nfa_.states) {
      for (const NfaEdge& edge : state.edges) starts[edge.first] = starts[size_t{edge.last} + 1] = true;
    }
    size_t current = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && starts[byte]) ++current;
      made_.class_of_[byte] = static_cast<uint8_t>(current);
    }
    made_.classes_ = current + 1;
    targets_.resize(made_.classes_);
  }

  // The states that are reached without a byte; those without edges are left out, except for the end.
  std::vector<int32_t> closure(const std::vector<int32_t>& from) {
    ++mark_;
    std::vector<int32_t> pending, reached;
    const auto visit = [&](int32_t state) {
      int64_t& mark = marks_[static_cast<size_t>(state)];
      if (mark == mark_) return;
      mark = mark_;
      pending.push_back(state);
    };
    for (const int32_t state : from) visit(state);
    while (!pending.empty()) {
      const int32_t state = pending.back();
      pending.pop_back();
      const NfaState& nfa_state = nfa_.states[static_cast<size_t>(state)];
      count(1 + static_cast<int64_t>(nfa_state.empty.size()));
      if (state == kEnd || !nfa_state.edges.empty()) reached.push_back(state);
      for (const int32_t next : nfa_state.empty) visit(next);
    }
    std::sort(reached.begin(), reached.end());
    return reached;
  }

  void count(int64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.steps) too_large();
  }
  [[noreturn]] void too_large() const {
    throw UsageError(field_ + ": the pattern is too complex: its automaton has more than " + std::to_string(limits_.dfa_states) +
                     " states, or takes more than " + std::to_string(limits_.steps) + " steps to make; use smaller counts");
  }

  size_t add(std::vector<int32_t> set) {
    const auto found = index_.find(set);
    if (found != index_.end()) return found->second;
    if (static_cast<int64_t>(sets_.size()) >= limits_.dfa_states) too_large();
    made_.accepting_.push_back(std::binary_search(set.begin(), set.end(), kEnd) ? 1 : 0);
    made_.transitions_.insert(made_.transitions_.end(), made_.classes_, ByteAutomaton::kNone);
    index_.emplace(set, sets_.size());
    sets_.push_back(std::move(set));
    return sets_.size() - 1;
  }

  void expand(size_t state) {
    for (const int32_t member : sets_[state]) {
      for (const NfaEdge& edge : nfa_.states[static_cast<size_t>(member)].edges) {
        const size_t first = made_.class_of_[edge.first], last = made_.class_of_[edge.last];
        count(1 + static_cast<int64_t>(last - first));
        for (size_t c = first; c <= last; ++c) targets_[c].push_back(edge.to);
      }
    }
    for (size_t c = 0; c < made_.classes_; ++c) {
      if (targets_[c].empty()) continue;
      const size_t to = add(closure(targets_[c]));
      made_.transitions_[state * made_.classes_ + c] = static_cast<uint16_t>(to);
      targets_[c].clear();
    }
  }

  // Removes the states from which the end cannot be reached.
  void keep_live() {
    const size_t states = sets_.size(), classes = made_.classes_;
    std::vector<std::vector<uint16_t>> sources(states);
    for (size_t i = 0; i < states * classes; ++i) {
      const uint16_t to = made_.transitions_[i];
      if (to != ByteAutomaton::kNone && (sources[to].empty() || sources[to].back() != i / classes))
        sources[to].push_back(static_cast<uint16_t>(i / classes));
    }
    std::vector<bool> live(states);
    std::vector<size_t> pending;
    for (size_t i = 0; i < states; ++i) {
      if (made_.accepting_[i] == 0) continue;
      live[i] = true;
      pending.push_back(i);
    }
    while (!pending.empty()) {
      const size_t state = pending.back();
      pending.pop_back();
      for (const uint16_t source : sources[state]) {
        if (live[source]) continue;
        live[source] = true;
        pending.push_back(source);
      }
    }
    if (!live[0]) throw UsageError(field_ + ": no text matches the pattern");
    std::vector<uint16_t> number(states, ByteAutomaton::kNone);
    uint16_t kept = 0;
    for (size_t i = 0; i < states; ++i)
      if (live[i]) number[i] = kept++;
    for (size_t i = 0; i < states; ++i) {
      if (!live[i]) continue;
      bool complete = made_.accepting_[i] != 0;
      for (size_t c = 0; c < classes; ++c) {
        const uint16_t to = made_.transitions_[i * classes + c];
        const uint16_t renumbered = to == ByteAutomaton::kNone ? to : number[to];
        made_.transitions_[number[i] * classes + c] = renumbered;
        complete = complete && renumbered == ByteAutomaton::kNone;
      }
      made_.accepting_[number[i]] = made_.accepting_[i];
      made_.complete_.push_back(complete ? 1 : 0);
    }
    made_.accepting_.resize(kept);
    made_.transitions_.resize(kept * classes);
  }

  const Nfa& nfa_;
  const std::string& field_;
  const RegexLimits& limits_;
  std::vector<int64_t> marks_;  // mark_ for the states that the current closure has reached
  int64_t mark_ = 0, steps_ = 0;
  std::vector<std::vector<int32_t>> sets_, targets_;  // states of the NFA: of each state; of each class of bytes
  std::unordered_map<std::vector<int32_t>, size_t, SetHash> index_;
  ByteAutomaton made_;
};

bool ByteAutomaton::matches(std::string_view text) const {
  int32_t state = 0;
  for (const char c : text) {
    state = next(state, static_cast<uint8_t>(c));
    if (state == kDead) return false;
  }
  return accepting(state);
}

ByteAutomaton compile_regex(std::string_view pattern, const std::string& field, const RegexLimits& limits) {
  const Regex regex = parse_regex(pattern, field, limits);
  return AutomatonBuilder::determined(NfaBuilder(regex, field, limits).build(), field, limits);
}

ByteAutomaton compile_choices(std::span<const std::string> choices) { return AutomatonBuilder::of_choices(choices); }

}  // namespace based
