#include "based/core/text.h"

#include <array>
#include <cstdio>
#include <system_error>

namespace based {

std::string printable(std::string_view text, size_t limit) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < text.size() && i < limit; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += "\\x";
      out += digits[c >> 4];
      out += digits[c & 15];
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

bool has_control_characters(std::string_view utf8) {
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    const auto next = i + 1 < utf8.size() ? static_cast<unsigned char>(utf8[i + 1]) : 0;
    if (c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0)) return true;
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
