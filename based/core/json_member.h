// Fast parsers for the most common lines of JSON-lines files, such as {"text": "…"}, which build no tree.
#pragma once
#include <string>
#include <string_view>

namespace based {

// If `text` is an object whose only member is the string `key`, stores it in `value` and returns true. If it returns false, call
// parse_json: the text may be valid (it may have other members, for example), and parse_json has the error messages. `key` must need no
// escapes.
bool read_only_member(std::string_view text, std::string_view key, std::string& value);

struct NestedKey {
  std::string_view outer, inner;
};

// As read_only_member for an object that also has other members: strings, and objects of strings. The string at outer.inner, as in
// {"text": "…", "meta": {"pile_set_name": "…"}} with outer = "meta" and inner = "pile_set_name", is stored in `nested`; "" if there is
// none. Returns false for all other values, and if a key occurs twice.
bool read_members(std::string_view text, std::string_view key, std::string& value, NestedKey nested_key, std::string& nested);

}  // namespace based
