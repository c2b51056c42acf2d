#include "based/core/text.h"

#include <array>
#include <cstdio>
#include <system_error>

#include "based/core/utf8.h"

namespace based {

namespace {

constexpr const char* kDigits = "0123456789abcdef";

bool is_control(char32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

}  // namespace

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

std::string format_number(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
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
