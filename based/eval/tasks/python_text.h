// Functions of Python's str and re on UTF-8 text, as lm-eval applies them to data sets. An invalid byte counts as one character that no
// function changes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace based {

bool is_python_space(char32_t code);  // str.isspace() of one character; the characters that re's \s matches

std::string_view python_strip(std::string_view text);               // str.strip()
std::string_view python_rstrip(std::string_view text);              // str.rstrip()
std::vector<std::string_view> python_split(std::string_view text);  // str.split(): the pieces between white space; none is empty
int64_t count_split_pieces(std::string_view text);                  // len(re.split(r"\s+", text)): an empty first or last piece counts

char32_t python_lower(char32_t code);  // the lower-case letter of one character (Unicode 14), or the character itself
// str.lower(): U+0130 becomes i and U+0307. U+03A3 becomes U+03C2 at the end of a word: after a letter with case, before none.
std::string python_lower(std::string_view text);
// str.capitalize(): the title case of the first character (Unicode 14), and the lower case of the others.
std::string python_capitalize(std::string_view text);

int64_t count_characters(std::string_view text);                                             // len(): code points
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);  // str.replace(); `from` is not empty

}  // namespace based
