#include "based/core/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <system_error>

#include "based/core/utf8.h"

namespace based {

namespace {

constexpr const char* kDigits = "0123456789abcdef";

bool is_control(char32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Cuts at character boundaries.
std::string without_middle(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t begin = limit / 2, end = text.size() - limit / 2;
  while (begin > 0 && continues_character(text[begin])) --begin;
  while (end < text.size() && continues_character(text[end])) ++end;
  std::string out(text.substr(0, begin));
  out += "… (" + std::to_string(end - begin) + " bytes) …";
  return out += text.substr(end);
}

std::string printed(const char* format, int digits, double value) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, digits, value)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, digits, value);
  return text;
}

}  // namespace

std::string hex_digits(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size() && i < limit; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += "\\x";
      out += kDigits[c >> 4];
      out += kDigits[c & 15];
    }
  }
  if (text.size() > limit) out += "… (" + std::to_string(text.size()) + " bytes)";
  return out;
}

std::string in_quotes(std::string_view text, size_t limit) {
  std::string out(1, '\'');
  out += printable(text, limit);
  return out += '\'';
}

std::string escape_controls(std::string_view text, bool keep_line_breaks) {
  std::string out;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    const std::string_view bytes(at, static_cast<size_t>(c.size));
    at += c.size;
    if (c.code == kInvalidUtf8) {
      out += printable(bytes);
    } else if (is_control(c.code) && !(c.code == '\n' && keep_line_breaks)) {
      out += "\\u00";
      out += kDigits[c.code >> 4];
      out += kDigits[c.code & 15];
    } else {
      out += bytes;
    }
  }
  return out;
}

bool has_control_characters(std::string_view utf8) {
  for (const char *at = utf8.data(), *end = at + utf8.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    if (is_control(c.code)) return true;
    at += c.size;
  }
  return false;
}

std::string shortened_lines(std::string_view text, size_t limit) {
  constexpr size_t kMostLines = 20;
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) out += '\n';
    out += without_middle(text.substr(at, end - at), limit);
    at = end + 1;
  }
  return without_middle(out, kMostLines * limit);
}

std::string format_number(double value, int digits) {
  constexpr double kExact = 1e15;
  if (std::isnan(value)) return "nan";  // printf may print "-nan"
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return std::fabs(value) < kExact ? printed("%.*f", digits, value) : printed("%.*e", std::max(digits, 2), value);
}

std::string padded(std::string text, size_t width) {
  while (text.size() < width) text += ' ';
  return text;
}

std::string padded_left(const std::string& text, size_t width) {
  std::string line;
  while (line.size() + text.size() < width) line += ' ';
  return line += text;
}

std::string system_message(int error_number) { return std::generic_category().message(error_number); }

}  // namespace based
