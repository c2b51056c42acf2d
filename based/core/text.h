// Text for messages: numbers, columns, and bytes from outside made safe to print.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace based {

// Control characters and bytes that are not ASCII as \xNN; cut after `limit` bytes, saying so.
std::string printable(std::string_view text, size_t limit = 80);
std::string in_quotes(std::string_view text, size_t limit = 80);  // 'text', printable

// Control characters as \u001b (U+0000 to U+001F, U+007F to U+009F) and bytes that are no UTF-8 as \xNN: what a terminal may be shown of a
// text from a file. Text in JSON means the same afterwards. All else, and where asked line breaks, stay.
std::string escape_controls(std::string_view text, bool keep_line_breaks = false);
bool has_control_characters(std::string_view utf8);  // below U+0020, and U+007F to U+009F

// Cuts the middle out of lines of more than `limit` bytes, and out of a message of more than twenty such lines, and says how many bytes
// were cut: a message may quote an argument or a file of any length. The beginning and the end, which names the remedy, stay.
std::string shortened_lines(std::string_view text, size_t limit = 1000);

// `digits` after the point: 3.142. From 1e15 on, where a double no longer tells one unit from the next, with an exponent: 3.40e+91. Numbers
// that are not finite are inf, -inf and nan.
std::string format_number(double value, int digits);
std::string padded(std::string text, size_t width);              // spaces behind, to at least `width`
std::string padded_left(const std::string& text, size_t width);  // spaces in front

// What errno means, as "No such file or directory".
std::string system_message(int error_number);

}  // namespace based
