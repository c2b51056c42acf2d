#include "based/data/pretokenizer.h"

#include <array>

#include "based/core/utf8.h"
#include "based/data/unicode_classes.h"

namespace based {
namespace {

// The class of an ASCII character. Its table is read for nearly every character and fits into four cache lines.
constexpr CharClass ascii_class(unsigned char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return CharClass::letter;
  if (c >= '0' && c <= '9') return CharClass::number;
  if (c == ' ' || (c >= '\t' && c <= '\r')) return CharClass::space;
  return CharClass::other;
}

constexpr std::array<CharClass, 128> make_ascii_classes() {
  std::array<CharClass, 128> classes{};
  for (unsigned char c = 0; c < 128; ++c) classes[c] = ascii_class(c);
  return classes;
}
constexpr std::array<CharClass, 128> kAscii = make_ascii_classes();

struct Classified {
  CharClass kind;
  int size;
};

Classified classify_wide(const char* at, const char* end) {
  const Utf8Char c = utf8_at(at, end);
  if (c.code == kInvalidUtf8) return {CharClass::other, 1};
  return {char_classes()[c.code], c.size};
}

inline Classified classify(const char* at, const char* end) {
  const auto byte = static_cast<unsigned char>(*at);
  return byte < 0x80 ? Classified{kAscii[byte], 1} : classify_wide(at, end);
}

inline const char* skip(const char* at, const char* end, CharClass kind) {
  while (at < end) {
    const Classified c = classify(at, end);
    if (c.kind != kind) break;
    at += c.size;
  }
  return at;
}

// Matches \s+(?!\S)|\s+ : a run of spaces before another character ends one space early, unless the run is a single space.
const char* spaces_end(const char* start, const char* end) {
  const char* at = start;
  const char* last = start;
  while (at < end) {
    const Classified c = classify(at, end);
    if (c.kind != CharClass::space) return last == start ? at : last;
    last = at;
    at += c.size;
  }
  return at;
}

// The size in bytes of a contraction ('s 't 're 've 'm 'll 'd) that starts at an apostrophe, or 0.
int contraction_size(const char* at, const char* end) {
  if (end - at < 2) return 0;
  const char a = at[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - at < 3) return 0;
  const char b = at[2];
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

}  // namespace

const char* pretoken_end(const char* at, const char* end) {
  if (*at == '\'') {
    if (const int size = contraction_size(at, end)) return at + size;
  }
  const char* start = at;
  if (*at == ' ' && end - at > 1) ++start;  // " ?": the space belongs to a run of letters, numbers or symbols after it
  const Classified first = classify(start, end);
  if (first.kind == CharClass::space) return spaces_end(at, end);
  return skip(start + first.size, end, first.kind);
}

}  // namespace based
