// Text for messages: formatting of numbers and columns, and escaping of untrusted bytes.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace based {

// Escapes control characters and non-ASCII bytes as \xNN. Longer text is cut after `limit` bytes, with a note that it was.
std::string printable(std::string_view text, size_t limit = 80);
std::string in_quotes(std::string_view text, size_t limit = 80);  // printable(text) in single quotes

std::string hex_digits(std::string_view bytes);  // two lower-case digits for each byte

// Makes text from files safe for a terminal: escapes control characters (U+0000 to U+001F, U+007F to U+009F) as \u001b and invalid UTF-8
// bytes as \xNN. JSON text keeps its meaning. Line breaks are kept if `keep_line_breaks` is true.
std::string escape_controls(std::string_view text, bool keep_line_breaks = false);
bool has_control_characters(std::string_view utf8);  // whether it has characters below U+0020 or in U+007F to U+009F

// Replaces the middle of lines longer than `limit` bytes, and of messages longer than twenty such lines, by the number of bytes left out: a
// message may quote an argument or a file of any length. The beginning stays, and the end, which names the remedy.
std::string shortened_lines(std::string_view text, size_t limit = 1000);

// `digits` decimals: 3.142. From 1e15 on, where a double cannot represent decimals reliably, with an exponent: 3.40e+91. Numbers that are
// not finite are inf, -inf and nan.
std::string format_number(double value, int digits);
std::string padded(std::string text, size_t width);              // appends spaces up to `width`
std::string padded_left(const std::string& text, size_t width);  // prepends spaces up to `width`

// The text of an errno, such as "No such file or directory".
std::string system_message(int error_number);

}  // namespace based
