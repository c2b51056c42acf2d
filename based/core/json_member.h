// The commonest line of a JSON-lines file, {"text": "…"}, without a tree.
#pragma once
#include <string>
#include <string_view>

namespace based {

// Whether `text` is an object with this one member, a string, which then replaces `value`. False says nothing: there are right texts that
// parse_json alone reads (surrogate pairs in \u escapes, say), and it has the error messages. `key` needs no escapes.
bool read_only_member(std::string_view text, std::string_view key, std::string& value);

}  // namespace based
