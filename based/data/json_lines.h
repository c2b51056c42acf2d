// Encoding and decoding of JSON lines by a tokenizer, for `based tokenize`.
//   text to ids: {"text": "…"}                    ->  {"ids":[…]}
//   ids to text: {"ids": [464, 3797]}             ->  {"text":"…"}
// JSON text is UTF-8. Text that is not valid UTF-8 is written as a list of bytes instead, in both directions: {"bytes": [255, 0]}.
#pragma once
#include <iosfwd>
#include <string>

#include "based/data/tokenizer.h"

namespace based {

// Write one line for each line of input; empty lines are skipped. Throw Error "<source>:<line>: <reason>" at the first invalid line; the
// lines before it have been written.
void encode_json_lines(const Tokenizer& tokenizer, Specials specials, std::istream& in, const std::string& source, std::ostream& out);
void decode_json_lines(const Tokenizer& tokenizer, std::istream& in, const std::string& source, std::ostream& out);

}  // namespace based
