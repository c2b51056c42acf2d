// Decoding of UTF-8 that may contain invalid bytes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace based {

struct Utf8Char {
  char32_t code = 0;  // kInvalidUtf8 if no valid character starts here
  int size = 1;       // bytes
};
inline constexpr char32_t kInvalidUtf8 = 0xffffffff;

// Decodes the character at `at`, which must be below `end`. Overlong forms, surrogates, codes above 0x10ffff (RFC 3629) and characters that
// are cut off by `end` are invalid.
inline Utf8Char utf8_at(const char* at, const char* end) {
  const auto byte = [at](int i) { return static_cast<unsigned char>(at[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const int size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || end - at < size) return {kInvalidUtf8, 1};
  char32_t code = lead & (0x7fu >> size);
  for (int i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {kInvalidUtf8, 1};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool bad = size == 3 ? code < 0x800 || (code >= 0xd800 && code < 0xe000) : size == 4 && (code < 0x10000 || code > 0x10ffff);
  return bad ? Utf8Char{kInvalidUtf8, 1} : Utf8Char{code, size};
}

inline bool is_valid_utf8(std::string_view text) {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    if (c.code == kInvalidUtf8) return false;
    at += c.size;
  }
  return true;
}

// The number of characters of valid UTF-8.
inline int64_t utf8_length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// Appends the UTF-8 encoding of a valid code point.
inline void append_utf8(char32_t code, std::string& out) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    put(code);
    return;
  }
  const int size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  put((0xf00u >> size & 0xf0u) | code >> 6 * (size - 1));
  for (int i = size - 2; i >= 0; --i) put(0x80 | (code >> 6 * i & 0x3f));
}

}  // namespace based
