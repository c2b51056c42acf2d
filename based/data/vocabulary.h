// The files of a byte-level BPE tokenizer: a strict reader, and a writer with the output of the Python `tokenizers` library.
//   vocab.json      {"!": 0, …}: maps a token's name to its id. A name has one printable character per byte (byte 0x20 is Ġ).
//   merges.txt      "#version: 0.2", then one merge per line in order of priority: "Ġ t".
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
  std::vector<Merge> merges;        // in order of priority
  std::vector<int32_t> specials;    // ascending; no merge produces or uses them
  std::vector<int32_t> added{};     // ascending; found in every text before the text is cut (token_finder.h)
  bool nfc = false;                 // whether the encoder normalizes to form C first (nfc.h)
};

inline constexpr size_t kMaxTokenBytes = 65536;

// The file of the folder that the tokenizer is read from: tokenizer.json, or vocab.json (with merges.txt) if there is none. Throws Error if
// neither exists.
std::string vocabulary_file(const std::string& folder);

// Reads tokenizer.json if the folder has one, otherwise vocab.json and merges.txt. The latter do not mark special tokens: a token of more
// than one byte that no merge produces is special, unless two other tokens spell it, which is a sign of missing merges. Throws Error as
// "<file>: <entry>: <reason>" for ids that are negative, duplicate or leave a gap, bytes of UTF-8 without a token, empty or overlong
// tokens, merges of unknown tokens, duplicate merges, tokens that no merge produces, and unsupported settings.
Vocabulary read_vocabulary(const std::string& folder);

// As read_vocabulary, for files that are already in memory. The `source` arguments name them in messages.
Vocabulary parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_source, std::string_view merges_txt,
                                  const std::string& merges_source);
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source);

// Writes all three files (tokenizer.json last) into an existing folder. With added tokens or form C only tokenizer.json, since the other
// two cannot express these.
void write_vocabulary(const Vocabulary& vocabulary, const std::string& folder);

// The name of a token, one character of GPT-2's byte alphabet per byte: printable bytes stand for themselves, the others are numbered from
// U+0100.
std::string token_name(std::string_view bytes);
// The bytes in the order of that alphabet, which is the order of GPT-2's ids 0 .. 255.
const std::vector<unsigned char>& byte_alphabet();

}  // namespace based
