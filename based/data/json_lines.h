// Tokenizers over JSON lines, as `based tokenize` runs them.
//   text to ids: {"text": "…"}                    ->  {"ids":[…]}
//   ids to text: {"ids": [464, 3797]}             ->  {"text":"…"}
// JSON text is UTF-8. Bytes that are not stand as numbers instead, in either direction: {"bytes": [255, 0]}.
#pragma once
#include <iosfwd>
#include <string>

#include "based/data/tokenizer.h"

namespace based {

// One line out for each line in; empty lines are passed over. `source` starts the messages: Error "<source>:<line>: what is wrong". Lines
// before a bad one have been written.
void encode_json_lines(const Tokenizer& tokenizer, Specials specials, std::istream& in, const std::string& source, std::ostream& out);
void decode_json_lines(const Tokenizer& tokenizer, std::istream& in, const std::string& source, std::ostream& out);

}  // namespace based
