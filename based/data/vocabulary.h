// The files of a byte-level BPE tokenizer, read strictly and written as the Python `tokenizers` library writes them.
//   vocab.json      {"!": 0, …}: a token's name to its id. A name spells each byte as one printable character (byte 0x20 is Ġ).
//   merges.txt      "#version: 0.2", then one merge a line, best first: "Ġ t".
//   tokenizer.json  both of these, and the special tokens.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/error.h"

namespace based {

struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

struct Vocabulary {
  std::vector<std::string> tokens;  // the bytes of every id
  std::vector<Merge> merges;        // best first
  std::vector<int32_t> specials;    // ascending; no merge makes them, no merge uses them
};

inline constexpr size_t kMaxTokenBytes = 65536;

// The file of the folder that a tokenizer is read from: tokenizer.json, or where there is none vocab.json, which has merges.txt beside it.
// Throws Error where neither is there.
std::string vocabulary_file(const std::string& folder);

// Reads tokenizer.json where the folder has one, else vocab.json and merges.txt; there a token of more than one byte that no merge makes is
// a special token, and one that two other tokens spell is a sign of missing merges. Throws Error as "<file>: <entry>: what is wrong" for
// ids that are negative, double or leave a gap, bytes without a token, empty or overlong tokens, merges of unknown tokens, double merges,
// tokens that nothing makes, and settings this tokenizer does not have.
Vocabulary read_vocabulary(const std::string& folder);

// The same for texts that are already in memory; `source` and the like start the messages.
Vocabulary parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_source, std::string_view merges_txt,
                                  const std::string& merges_source);
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source);

// Writes all three files (tokenizer.json last) into an existing folder.
void write_vocabulary(const Vocabulary& vocabulary, const std::string& folder);

// The name of a token: each byte as the character that GPT-2's alphabet gives it. Bytes that print stand for themselves, the others are
// numbered from U+0100.
std::string token_name(std::string_view bytes);
// The bytes in the order of that alphabet: the order of ids 0 .. 255 of GPT-2.
const std::vector<unsigned char>& byte_alphabet();

}  // namespace based
