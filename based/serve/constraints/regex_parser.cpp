#include "based/serve/constraints/regex_parser.h"

#include <algorithm>
#include <utility>

#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {
namespace {

constexpr char32_t kLastCharacter = 0x10ffff, kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

std::vector<CharRange> sorted_ranges(std::vector<CharRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  std::vector<CharRange> merged;
  for (const CharRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last + 1)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  return merged;
}

std::vector<CharRange> complement(const std::vector<CharRange>& ranges) {
  std::vector<CharRange> others;
  char32_t first = 0;
  for (const CharRange& range : sorted_ranges(ranges)) {
    if (range.first > first) others.push_back({first, range.first - 1});
    first = range.last + 1;
  }
  if (first <= kLastCharacter) others.push_back({first, kLastCharacter});
  return others;
}

// The ranges of \d, \w and \s; none for other letters.
std::vector<CharRange> named_class(char letter) {
  switch (letter) {
    case 'd': return {{U'0', U'9'}};
    case 'w': return {{U'0', U'9'}, {U'A', U'Z'}, {U'_', U'_'}, {U'a', U'z'}};
    case 's': return {{U'\t', U'\r'}, {U' ', U' '}};
    default: return {};
  }
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const std::string& field, const RegexLimits& limits)
      : text_(pattern), field_(field), limits_(limits) {}

  Regex parse() {
    if (static_cast<int64_t>(text_.size()) > limits_.pattern_bytes)
      throw UsageError(field_ + ": the pattern has " + std::to_string(text_.size()) + " bytes; at most " +
                       std::to_string(limits_.pattern_bytes) + " are allowed");
    if (!is_valid_utf8(text_)) throw UsageError(field_ + ": the pattern is not UTF-8");
    if (peek() == '^') ++at_;
    regex_.root = alternatives(0);
    if (at_ < text_.size()) fail("')' without '('");
    return std::move(regex_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw UsageError(field_ + ": " + reason + " at byte " + std::to_string(at_ + 1) + " of the pattern");
  }
  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t offset = 0) const { return at_ + offset < text_.size() ? text_[at_ + offset] : '\0'; }
  bool skip(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  int32_t add(RegexNode node) {
    regex_.nodes.push_back(std::move(node));
    return static_cast<int32_t>(regex_.nodes.size() - 1);
  }

  int32_t alternatives(int depth) {
    if (depth > limits_.depth) fail("more than " + std::to_string(limits_.depth) + " nested groups");
    RegexNode node{.kind = RegexNode::Kind::alternatives, .chars = {}, .children = {sequence(depth)}};
    while (skip("|")) node.children.push_back(sequence(depth));
    return node.children.size() == 1 ? node.children.front() : add(std::move(node));
  }

  int32_t sequence(int depth) {
    RegexNode node{.kind = RegexNode::Kind::sequence, .chars = {}, .children = {}};
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (peek() == '$' && at_ + 1 == text_.size()) {
        ++at_;
        break;
      }
      node.children.push_back(repeated(atom(depth)));
    }
    if (node.children.empty()) return add({});
    return node.children.size() == 1 ? node.children.front() : add(std::move(node));
  }

  int32_t repeated(int32_t atom) {
    RegexNode node{.kind = RegexNode::Kind::repeat, .chars = {}, .children = {atom}};
    if (skip("*"))
      node.least = 0, node.most = -1;
    else if (skip("+"))
      node.least = 1, node.most = -1;
    else if (skip("?"))
      node.least = 0, node.most = 1;
    else if (peek() == '{')
      counts(node);
    else
      return atom;
    skip("?");
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') fail("a repetition of a repetition; use a group");
    return add(std::move(node));
  }

  void counts(RegexNode& node) {
    ++at_;
    node.least = peek() == ',' ? 0 : number();
    node.most = node.least;
    if (skip(",")) node.most = peek() == '}' ? -1 : number();
    if (!skip("}")) fail("expected '}' of a repetition; a literal brace is written \\{");
    if (node.most >= 0 && node.most < node.least) fail("a repetition whose largest count is below its smallest");
  }

  int64_t number() {
    const size_t start = at_;
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9' && value <= limits_.repeat) value = value * 10 + (text_[at_++] - '0');
    if (at_ == start) fail("expected a number in a repetition; a literal brace is written \\{");
    if (value > limits_.repeat) fail("a repetition of more than " + std::to_string(limits_.repeat));
    return value;
  }

  int32_t atom(int depth) {
    switch (peek()) {
      case '(': return group(depth);
      case '[': return char_class();
      case '.': ++at_; return chars(complement({{U'\n', U'\n'}}));
      case '\\': return chars(escape());
      case '*':
      case '+':
      case '?':
      case '{': fail("nothing to repeat");
      case '^': fail("'^' is supported at the start only; a literal one is written \\^,");
      case '$': fail("'$' is supported at the end only; a literal one is written \\$,");
      default: break;
    }
    const char32_t c = character();
    return chars({{c, c}});
  }

  int32_t chars(std::vector<CharRange> ranges) {
    return add({.kind = RegexNode::Kind::chars, .chars = sorted_ranges(std::move(ranges)), .children = {}});
  }

  int32_t group(int depth) {
    ++at_;
    if (skip("?")) {
      if (skip("P<") || (peek() == '<' && peek(1) != '=' && peek(1) != '!')) {
        skip("<");
        while (!at_end() && peek() != '>') ++at_;
        if (!skip(">")) fail("a group's name without '>'");
      } else if (!skip(":")) {
        fail("lookaround, flags and other '(?' groups are not supported");
      }
    }
    const int32_t node = alternatives(depth + 1);
    if (!skip(")")) fail("'(' without ')'");
    return node;
  }

  char32_t character() {
    const Utf8Char c = utf8_at(text_.data() + at_, text_.data() + text_.size());
    at_ += static_cast<size_t>(c.size);
    return c.code;
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
      if (!digit && !lower && !upper) fail("expected " + std::to_string(digits) + " hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
    }
    if (value >= kFirstSurrogate && value <= kLastSurrogate) fail("a surrogate is no character");
    return value;
  }

  // The characters of an escape sequence; at_ is at its backslash.
  std::vector<CharRange> escape() {
    ++at_;
    if (at_end()) fail("a backslash at the end");
    const char letter = text_[at_];
    const auto one = [](char32_t c) { return std::vector<CharRange>{{c, c}}; };
    const bool alphanumeric = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (!alphanumeric) return one(character());
    ++at_;
    switch (letter) {
      case 'd':
      case 'w':
      case 's': return named_class(letter);
      case 'D': return complement(named_class('d'));
      case 'W': return complement(named_class('w'));
      case 'S': return complement(named_class('s'));
      case 'n': return one(U'\n');
      case 'r': return one(U'\r');
      case 't': return one(U'\t');
      case 'f': return one(U'\f');
      case 'v': return one(U'\v');
      case 'x': return one(hex(2));
      case 'u': return one(hex(4));
      case '0':
        if (peek() < '0' || peek() > '9') return one(U'\0');
        break;
      default: break;
    }
    --at_;
    fail(std::string("the escape \\") + letter + " is not supported");
  }

  int32_t char_class() {
    ++at_;
    const bool negated = skip("^");
    std::vector<CharRange> ranges;
    for (bool first = true; first || peek() != ']'; first = false) {
      if (at_end()) fail("'[' without ']'");
      const std::vector<CharRange> low = class_member();
      const bool single = low.size() == 1 && low[0].first == low[0].last;
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        const std::vector<CharRange> high = class_member();
        if (!single || high.size() != 1 || high[0].first != high[0].last) fail("a range of a class needs a character on each side");
        if (high[0].first < low[0].first) fail("a range of a class whose end is below its start");
        ranges.push_back({low[0].first, high[0].first});
      } else {
        ranges.insert(ranges.end(), low.begin(), low.end());
      }
    }
    ++at_;
    return chars(negated ? complement(ranges) : std::move(ranges));
  }

  std::vector<CharRange> class_member() {
    if (at_end()) fail("'[' without ']'");
    if (peek() == '\\') {
      if (peek(1) == 'b') {
        at_ += 2;
        return {{U'\b', U'\b'}};
      }
      return escape();
    }
    const char32_t c = character();
    return {{c, c}};
  }

  std::string_view text_;
  const std::string& field_;
  const RegexLimits& limits_;
  size_t at_ = 0;
  Regex regex_;
};

}  // namespace

Regex parse_regex(std::string_view pattern, const std::string& field, const RegexLimits& limits) {
  return RegexParser(pattern, field, limits).parse();
}

}  // namespace based
