// Unicode's normalization form C (UAX #15), which the tokenizer of GPT-NeoX-20b applies before it encodes. Characters and combining classes
// are those of Unicode 9.0, the version of the Python `tokenizers` library: a later table would order 98 marks differently and give other
// ids.
#pragma once
#include <string>
#include <string_view>

namespace based {

// Whether `text` has only characters below U+0300, which form C never changes.
bool is_nfc_at_sight(std::string_view text);

// `text` in form C. Bytes that are not valid UTF-8 stay as they are.
std::string to_nfc(std::string_view text);

}  // namespace based
