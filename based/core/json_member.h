// A fast parser for the most common line of JSON-lines files, {"text": "…"}, which builds no tree.
#pragma once
#include <string>
#include <string_view>

namespace based {

// If `text` is an object whose only member is the string `key`, stores it in `value` and returns true. If it returns false, call
// parse_json: the text may be valid (this function does not read surrogate pairs in \u escapes, for example), and parse_json has the error
// messages. `key` must need no escapes.
bool read_only_member(std::string_view text, std::string_view key, std::string& value);

}  // namespace based
