#include "based/data/nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "based/core/utf8.h"
#include "based/data/nfc_tables.h"

namespace based {
namespace {

// A text of characters below this code is in form C: each composes again from its parts, and none is the second part of a pair.
constexpr char32_t kFirstChanged = 0x300;
constexpr unsigned char kFirstChangedLead = 0xcc;  // its first byte in UTF-8

// Hangul syllables are numbered by their parts: a leading consonant, a vowel and an optional trailing consonant.
constexpr char32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11a7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28, kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

struct Tables {
  std::unordered_map<char32_t, Decomposition> parts;  // by `whole`
  std::unordered_map<uint64_t, char32_t> wholes;      // by pair_of()

  static uint64_t pair_of(char32_t first, char32_t second) { return uint64_t{first} << 32 | second; }
  Tables() {
    for (const auto& table : {composed_pairs(), other_pairs(), singletons()})
      for (const Decomposition& d : table) parts[d.whole] = d;
    for (const Decomposition& d : composed_pairs()) wholes[pair_of(d.first, d.second)] = d.whole;
  }
};
const Tables& tables() {
  static const Tables made;
  return made;
}

uint8_t class_of(char32_t code) {
  const auto ranges = combining_classes();
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code, [](char32_t c, const CombiningClass& r) { return c < r.first; });
  return after != ranges.begin() && code <= (after - 1)->last ? (after - 1)->value : 0;
}

struct Character {
  char32_t code;
  uint8_t combining_class;  // 0: a starter, which marks follow
};

void append_decomposed(char32_t code, std::vector<Character>& out) {
  if (code >= kSyllables && code < kSyllables + kSyllableCount) {
    const char32_t index = code - kSyllables, trail = index % kTrailCount;
    out.push_back({kLeads + index / (kVowelCount * kTrailCount), 0});
    out.push_back({kVowels + index / kTrailCount % kVowelCount, 0});
    if (trail != 0) out.push_back({kTrails + trail, 0});
    return;
  }
  const auto found = tables().parts.find(code);
  if (found == tables().parts.end()) {
    out.push_back({code, class_of(code)});
    return;
  }
  append_decomposed(found->second.first, out);
  if (found->second.second != 0) append_decomposed(found->second.second, out);
}

// The character that two characters compose to, or 0.
char32_t composed(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels && second < kVowels + kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTrailCount;
  const bool lacks_trail = first >= kSyllables && first < kSyllables + kSyllableCount && (first - kSyllables) % kTrailCount == 0;
  if (lacks_trail && second > kTrails && second < kTrails + kTrailCount) return first + (second - kTrails);
  const auto found = tables().wholes.find(Tables::pair_of(first, second));
  return found == tables().wholes.end() ? 0 : found->second;
}

// Sorts each run of marks by class. Marks of one class keep their order.
void order_marks(std::vector<Character>& text) {
  const auto is_starter = [](const Character& c) { return c.combining_class == 0; };
  for (auto at = text.begin(); at != text.end();) {
    const auto marks = std::find_if_not(at, text.end(), is_starter), end = std::find_if(marks, text.end(), is_starter);
    std::stable_sort(marks, end, [](const Character& a, const Character& b) { return a.combining_class < b.combining_class; });
    at = end;
  }
}

// Composes a starter with each later character that is not blocked: no starter and no mark of its class or above may stand between them.
void compose(std::vector<Character>& text) {
  size_t kept = 0, starter = 0;
  bool has_starter = false;
  for (const Character& c : text) {
    const bool adjacent = has_starter && kept == starter + 1;
    if (has_starter && (adjacent || (text[kept - 1].combining_class != 0 && text[kept - 1].combining_class < c.combining_class))) {
      if (const char32_t whole = composed(text[starter].code, c.code)) {
        text[starter].code = whole;
        continue;
      }
    }
    if (c.combining_class == 0) has_starter = true, starter = kept;
    text[kept++] = c;
  }
  text.resize(kept);
}

}  // namespace

bool is_nfc_at_sight(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= kFirstChangedLead; });
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<Character> pending;  // a character and those after it that may compose with it
  const auto flush = [&] {
    order_marks(pending), compose(pending);
    for (const Character& c : pending) append_utf8(c.code, out);
    pending.clear();
  };
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    if (c.code == kInvalidUtf8) {
      flush();
      out += *at;
    } else {
      if (c.code < kFirstChanged) flush();
      append_decomposed(c.code, pending);
    }
    at += c.size;
  }
  flush();
  return out;
}

}  // namespace based
