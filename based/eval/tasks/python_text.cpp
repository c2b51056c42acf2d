#include "based/eval/tasks/python_text.h"

#include <algorithm>
#include <iterator>

#include "based/core/utf8.h"

namespace based {
namespace {

// The lower case of first, first + step, …, last is `offset` further on.
struct LowerCaseRange {
  char32_t first, last;
  int step, offset;
};

// clang-format off
// Characters from U+0080 on whose lower case is one other character: Unicode 14.
constexpr LowerCaseRange kLowerCaseRanges[] = {
    {0xc0, 0xd6, 1, 32}, {0xd8, 0xde, 1, 32}, {0x100, 0x12e, 2, 1}, {0x132, 0x136, 2, 1}, {0x139, 0x147, 2, 1}, {0x14a, 0x176, 2, 1},
    {0x178, 0x178, 1, -121}, {0x179, 0x17d, 2, 1}, {0x181, 0x181, 1, 210}, {0x182, 0x184, 2, 1}, {0x186, 0x186, 1, 206},
    {0x187, 0x187, 1, 1}, {0x189, 0x18a, 1, 205}, {0x18b, 0x18b, 1, 1}, {0x18e, 0x18e, 1, 79}, {0x18f, 0x18f, 1, 202},
    {0x190, 0x190, 1, 203}, {0x191, 0x191, 1, 1}, {0x193, 0x193, 1, 205}, {0x194, 0x194, 1, 207}, {0x196, 0x196, 1, 211},
    {0x197, 0x197, 1, 209}, {0x198, 0x198, 1, 1}, {0x19c, 0x19c, 1, 211}, {0x19d, 0x19d, 1, 213}, {0x19f, 0x19f, 1, 214},
    {0x1a0, 0x1a4, 2, 1}, {0x1a6, 0x1a6, 1, 218}, {0x1a7, 0x1a7, 1, 1}, {0x1a9, 0x1a9, 1, 218}, {0x1ac, 0x1ac, 1, 1},
    {0x1ae, 0x1ae, 1, 218}, {0x1af, 0x1af, 1, 1}, {0x1b1, 0x1b2, 1, 217}, {0x1b3, 0x1b5, 2, 1}, {0x1b7, 0x1b7, 1, 219},
    {0x1b8, 0x1b8, 1, 1}, {0x1bc, 0x1bc, 1, 1}, {0x1c4, 0x1c4, 1, 2}, {0x1c5, 0x1c5, 1, 1}, {0x1c7, 0x1c7, 1, 2}, {0x1c8, 0x1c8, 1, 1},
    {0x1ca, 0x1ca, 1, 2}, {0x1cb, 0x1db, 2, 1}, {0x1de, 0x1ee, 2, 1}, {0x1f1, 0x1f1, 1, 2}, {0x1f2, 0x1f4, 2, 1}, {0x1f6, 0x1f6, 1, -97},
    {0x1f7, 0x1f7, 1, -56}, {0x1f8, 0x21e, 2, 1}, {0x220, 0x220, 1, -130}, {0x222, 0x232, 2, 1}, {0x23a, 0x23a, 1, 10795},
    {0x23b, 0x23b, 1, 1}, {0x23d, 0x23d, 1, -163}, {0x23e, 0x23e, 1, 10792}, {0x241, 0x241, 1, 1}, {0x243, 0x243, 1, -195},
    {0x244, 0x244, 1, 69}, {0x245, 0x245, 1, 71}, {0x246, 0x24e, 2, 1}, {0x370, 0x372, 2, 1}, {0x376, 0x376, 1, 1}, {0x37f, 0x37f, 1, 116},
    {0x386, 0x386, 1, 38}, {0x388, 0x38a, 1, 37}, {0x38c, 0x38c, 1, 64}, {0x38e, 0x38f, 1, 63}, {0x391, 0x3a1, 1, 32},
    {0x3a3, 0x3ab, 1, 32}, {0x3cf, 0x3cf, 1, 8}, {0x3d8, 0x3ee, 2, 1}, {0x3f4, 0x3f4, 1, -60}, {0x3f7, 0x3f7, 1, 1}, {0x3f9, 0x3f9, 1, -7},
    {0x3fa, 0x3fa, 1, 1}, {0x3fd, 0x3ff, 1, -130}, {0x400, 0x40f, 1, 80}, {0x410, 0x42f, 1, 32}, {0x460, 0x480, 2, 1}, {0x48a, 0x4be, 2, 1},
    {0x4c0, 0x4c0, 1, 15}, {0x4c1, 0x4cd, 2, 1}, {0x4d0, 0x52e, 2, 1}, {0x531, 0x556, 1, 48}, {0x10a0, 0x10c5, 1, 7264},
    {0x10c7, 0x10c7, 1, 7264}, {0x10cd, 0x10cd, 1, 7264}, {0x13a0, 0x13ef, 1, 38864}, {0x13f0, 0x13f5, 1, 8}, {0x1c90, 0x1cba, 1, -3008},
    {0x1cbd, 0x1cbf, 1, -3008}, {0x1e00, 0x1e94, 2, 1}, {0x1e9e, 0x1e9e, 1, -7615}, {0x1ea0, 0x1efe, 2, 1}, {0x1f08, 0x1f0f, 1, -8},
    {0x1f18, 0x1f1d, 1, -8}, {0x1f28, 0x1f2f, 1, -8}, {0x1f38, 0x1f3f, 1, -8}, {0x1f48, 0x1f4d, 1, -8}, {0x1f59, 0x1f5f, 2, -8},
    {0x1f68, 0x1f6f, 1, -8}, {0x1f88, 0x1f8f, 1, -8}, {0x1f98, 0x1f9f, 1, -8}, {0x1fa8, 0x1faf, 1, -8}, {0x1fb8, 0x1fb9, 1, -8},
    {0x1fba, 0x1fbb, 1, -74}, {0x1fbc, 0x1fbc, 1, -9}, {0x1fc8, 0x1fcb, 1, -86}, {0x1fcc, 0x1fcc, 1, -9}, {0x1fd8, 0x1fd9, 1, -8},
    {0x1fda, 0x1fdb, 1, -100}, {0x1fe8, 0x1fe9, 1, -8}, {0x1fea, 0x1feb, 1, -112}, {0x1fec, 0x1fec, 1, -7}, {0x1ff8, 0x1ff9, 1, -128},
    {0x1ffa, 0x1ffb, 1, -126}, {0x1ffc, 0x1ffc, 1, -9}, {0x2126, 0x2126, 1, -7517}, {0x212a, 0x212a, 1, -8383}, {0x212b, 0x212b, 1, -8262},
    {0x2132, 0x2132, 1, 28}, {0x2160, 0x216f, 1, 16}, {0x2183, 0x2183, 1, 1}, {0x24b6, 0x24cf, 1, 26}, {0x2c00, 0x2c2f, 1, 48},
    {0x2c60, 0x2c60, 1, 1}, {0x2c62, 0x2c62, 1, -10743}, {0x2c63, 0x2c63, 1, -3814}, {0x2c64, 0x2c64, 1, -10727}, {0x2c67, 0x2c6b, 2, 1},
    {0x2c6d, 0x2c6d, 1, -10780}, {0x2c6e, 0x2c6e, 1, -10749}, {0x2c6f, 0x2c6f, 1, -10783}, {0x2c70, 0x2c70, 1, -10782},
    {0x2c72, 0x2c72, 1, 1}, {0x2c75, 0x2c75, 1, 1}, {0x2c7e, 0x2c7f, 1, -10815}, {0x2c80, 0x2ce2, 2, 1}, {0x2ceb, 0x2ced, 2, 1},
    {0x2cf2, 0x2cf2, 1, 1}, {0xa640, 0xa66c, 2, 1}, {0xa680, 0xa69a, 2, 1}, {0xa722, 0xa72e, 2, 1}, {0xa732, 0xa76e, 2, 1},
    {0xa779, 0xa77b, 2, 1}, {0xa77d, 0xa77d, 1, -35332}, {0xa77e, 0xa786, 2, 1}, {0xa78b, 0xa78b, 1, 1}, {0xa78d, 0xa78d, 1, -42280},
    {0xa790, 0xa792, 2, 1}, {0xa796, 0xa7a8, 2, 1}, {0xa7aa, 0xa7aa, 1, -42308}, {0xa7ab, 0xa7ab, 1, -42319}, {0xa7ac, 0xa7ac, 1, -42315},
    {0xa7ad, 0xa7ad, 1, -42305}, {0xa7ae, 0xa7ae, 1, -42308}, {0xa7b0, 0xa7b0, 1, -42258}, {0xa7b1, 0xa7b1, 1, -42282},
    {0xa7b2, 0xa7b2, 1, -42261}, {0xa7b3, 0xa7b3, 1, 928}, {0xa7b4, 0xa7c2, 2, 1}, {0xa7c4, 0xa7c4, 1, -48}, {0xa7c5, 0xa7c5, 1, -42307},
    {0xa7c6, 0xa7c6, 1, -35384}, {0xa7c7, 0xa7c9, 2, 1}, {0xa7d0, 0xa7d0, 1, 1}, {0xa7d6, 0xa7d8, 2, 1}, {0xa7f5, 0xa7f5, 1, 1},
    {0xff21, 0xff3a, 1, 32}, {0x10400, 0x10427, 1, 40}, {0x104b0, 0x104d3, 1, 40}, {0x10570, 0x1057a, 1, 39}, {0x1057c, 0x1058a, 1, 39},
    {0x1058c, 0x10592, 1, 39}, {0x10594, 0x10595, 1, 39}, {0x10c80, 0x10cb2, 1, 64}, {0x118a0, 0x118bf, 1, 32}, {0x16e40, 0x16e5f, 1, 32},
    {0x1e900, 0x1e921, 1, 34},
};

struct TitleCase {
  char32_t code;
  std::u32string_view title;
};

// Characters whose title case is not the upper case that kLowerCaseRanges leads back to, Georgian letters excepted: Unicode 14.
constexpr TitleCase kTitleCases[] = {
    {0xb5, U"\u039c"}, {0xdf, U"Ss"}, {0x131, U"I"}, {0x149, U"\u02bcN"}, {0x17f, U"S"}, {0x1c4, U"\u01c5"}, {0x1c6, U"\u01c5"},
    {0x1c7, U"\u01c8"}, {0x1c9, U"\u01c8"}, {0x1ca, U"\u01cb"}, {0x1cc, U"\u01cb"}, {0x1f0, U"J\u030c"}, {0x1f1, U"\u01f2"},
    {0x1f3, U"\u01f2"}, {0x345, U"\u0399"}, {0x390, U"\u0399\u0308\u0301"}, {0x3b0, U"\u03a5\u0308\u0301"}, {0x3c2, U"\u03a3"},
    {0x3d0, U"\u0392"}, {0x3d1, U"\u0398"}, {0x3d5, U"\u03a6"}, {0x3d6, U"\u03a0"}, {0x3f0, U"\u039a"}, {0x3f1, U"\u03a1"},
    {0x3f5, U"\u0395"}, {0x587, U"\u0535\u0582"}, {0x1c80, U"\u0412"}, {0x1c81, U"\u0414"}, {0x1c82, U"\u041e"}, {0x1c83, U"\u0421"},
    {0x1c84, U"\u0422"}, {0x1c85, U"\u0422"}, {0x1c86, U"\u042a"}, {0x1c87, U"\u0462"}, {0x1c88, U"\ua64a"}, {0x1e96, U"H\u0331"},
    {0x1e97, U"T\u0308"}, {0x1e98, U"W\u030a"}, {0x1e99, U"Y\u030a"}, {0x1e9a, U"A\u02be"}, {0x1e9b, U"\u1e60"},
    {0x1f50, U"\u03a5\u0313"}, {0x1f52, U"\u03a5\u0313\u0300"}, {0x1f54, U"\u03a5\u0313\u0301"}, {0x1f56, U"\u03a5\u0313\u0342"},
    {0x1fb2, U"\u1fba\u0345"}, {0x1fb4, U"\u0386\u0345"}, {0x1fb6, U"\u0391\u0342"}, {0x1fb7, U"\u0391\u0342\u0345"}, {0x1fbe, U"\u0399"},
    {0x1fc2, U"\u1fca\u0345"}, {0x1fc4, U"\u0389\u0345"}, {0x1fc6, U"\u0397\u0342"}, {0x1fc7, U"\u0397\u0342\u0345"},
    {0x1fd2, U"\u0399\u0308\u0300"}, {0x1fd3, U"\u0399\u0308\u0301"}, {0x1fd6, U"\u0399\u0342"}, {0x1fd7, U"\u0399\u0308\u0342"},
    {0x1fe2, U"\u03a5\u0308\u0300"}, {0x1fe3, U"\u03a5\u0308\u0301"}, {0x1fe4, U"\u03a1\u0313"}, {0x1fe6, U"\u03a5\u0342"},
    {0x1fe7, U"\u03a5\u0308\u0342"}, {0x1ff2, U"\u1ffa\u0345"}, {0x1ff4, U"\u038f\u0345"}, {0x1ff6, U"\u03a9\u0342"},
    {0x1ff7, U"\u03a9\u0342\u0345"}, {0xfb00, U"Ff"}, {0xfb01, U"Fi"}, {0xfb02, U"Fl"}, {0xfb03, U"Ffi"}, {0xfb04, U"Ffl"},
    {0xfb05, U"St"}, {0xfb06, U"St"}, {0xfb13, U"\u0544\u0576"}, {0xfb14, U"\u0544\u0565"}, {0xfb15, U"\u0544\u056b"},
    {0xfb16, U"\u054e\u0576"}, {0xfb17, U"\u0544\u056d"},
};
// clang-format on

constexpr char32_t kCapitalIWithDot = 0x130, kCapitalSigma = 0x3a3, kFinalSigma = 0x3c2;

char32_t shifted(char32_t code, int offset) { return static_cast<char32_t>(static_cast<int>(code) + offset); }

char32_t upper_case(char32_t code) {
  if (code < 0x80) return code >= 'a' && code <= 'z' ? code - 32 : code;
  for (const LowerCaseRange& range : kLowerCaseRanges) {
    const char32_t upper = shifted(code, -range.offset);
    if (upper >= range.first && upper <= range.last && (upper - range.first) % static_cast<unsigned>(range.step) == 0) return upper;
  }
  return code;
}

// The title case, if it differs from upper_case().
const TitleCase* special_title_case(char32_t code) {
  const auto* const found = std::lower_bound(std::begin(kTitleCases), std::end(kTitleCases), code,
                                             [](const TitleCase& item, char32_t value) { return item.code < value; });
  return found != std::end(kTitleCases) && found->code == code ? found : nullptr;
}

bool is_georgian(char32_t code) { return code >= 0x10d0 && code <= 0x10ff; }  // letters that have an upper case, but no title case

bool is_cased(char32_t code) {
  return code != kInvalidUtf8 &&
         (code == kCapitalIWithDot || python_lower(code) != code || upper_case(code) != code || special_title_case(code) != nullptr);
}

// The most common characters of Unicode's property Case_Ignorable: the rule of the final sigma skips them.
bool is_case_ignorable(char32_t code) {
  constexpr std::u32string_view kCommon = U"'.:^`\u00a8\u00ad\u00af\u00b4\u00b7\u00b8\u2018\u2019\u2024\u2027";
  return kCommon.find(code) != std::u32string_view::npos || (code >= 0x300 && code <= 0x36f);
}

// Whether the next character that is not ignorable has case.
bool precedes_cased(const char* at, const char* end) {
  for (; at < end;) {
    const Utf8Char c = utf8_at(at, end);
    if (!is_case_ignorable(c.code)) return is_cased(c.code);
    at += c.size;
  }
  return false;
}

// Appends the character at `at`, or its invalid byte, with `change` applied.
template <class Change>
void append_changed(const char* at, Utf8Char c, const Change& change, std::string& out) {
  if (c.code == kInvalidUtf8)
    out += *at;
  else
    append_utf8(change(c.code), out);
}

}  // namespace

bool is_python_space(char32_t code) {
  return (code >= 0x9 && code <= 0xd) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view python_rstrip(std::string_view text) {
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text.data() + at, text.data() + text.size());
    at += static_cast<size_t>(c.size);
    if (!is_python_space(c.code)) kept = at;
  }
  return text.substr(0, kept);
}

std::string_view python_strip(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = utf8_at(text.data(), text.data() + text.size());
    if (!is_python_space(c.code)) break;
    text.remove_prefix(static_cast<size_t>(c.size));
  }
  return python_rstrip(text);
}

std::vector<std::string_view> python_split(std::string_view text) {
  std::vector<std::string_view> pieces;
  size_t start = 0;
  const auto end_piece = [&](size_t end) {
    if (end > start) pieces.push_back(text.substr(start, end - start));
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text.data() + at, text.data() + text.size());
    const size_t next = at + static_cast<size_t>(c.size);
    if (is_python_space(c.code)) {
      end_piece(at);
      start = next;
    }
    at = next;
  }
  end_piece(text.size());
  return pieces;
}

int64_t count_split_pieces(std::string_view text) {
  int64_t pieces = 1;
  bool in_space = false;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    const bool space = is_python_space(c.code);
    if (space && !in_space) ++pieces;
    in_space = space;
    at += c.size;
  }
  return pieces;
}

char32_t python_lower(char32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
  const auto after = std::upper_bound(std::begin(kLowerCaseRanges), std::end(kLowerCaseRanges), code,
                                      [](char32_t value, const LowerCaseRange& range) { return value < range.first; });
  // Ranges of step 2 overlap the next one by at most one character in between, so that two candidates are enough.
  for (auto range = after; range != std::begin(kLowerCaseRanges) && after - range < 2;) {
    --range;
    if (code <= range->last && (code - range->first) % static_cast<unsigned>(range->step) == 0) return shifted(code, range->offset);
  }
  return code;
}

std::string python_lower(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  bool after_cased = false;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    const char* next = at + c.size;
    if (c.code == kCapitalIWithDot) {
      lower += "i\u0307";
    } else {
      const bool final = c.code == kCapitalSigma && after_cased && !precedes_cased(next, end);
      append_changed(
          at, c, [final](char32_t code) { return final ? kFinalSigma : python_lower(code); }, lower);
    }
    if (!is_case_ignorable(c.code)) after_cased = is_cased(c.code);
    at = next;
  }
  return lower;
}

std::string python_capitalize(std::string_view text) {
  if (text.empty()) return "";
  const Utf8Char first = utf8_at(text.data(), text.data() + text.size());
  std::string capitalized;
  if (const TitleCase* const special = special_title_case(first.code)) {
    for (const char32_t code : special->title) append_utf8(code, capitalized);
  } else {
    append_changed(
        text.data(), first, [](char32_t code) { return is_georgian(code) ? code : upper_case(code); }, capitalized);
  }
  return capitalized + python_lower(text.substr(static_cast<size_t>(first.size)));
}

int64_t count_characters(std::string_view text) {
  int64_t characters = 0;
  for (const char *at = text.data(), *end = at + text.size(); at < end; ++characters) at += utf8_at(at, end).size;
  return characters;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t found = 0; (found = text.find(from, at)) != std::string_view::npos; at = found + from.size()) {
    out += text.substr(at, found - at);
    out += to;
  }
  return out += text.substr(at);
}

}  // namespace based
