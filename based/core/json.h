// The only wrapper of nlohmann-json. Text from outside must be parsed by parse_json: nlohmann itself silently keeps the last of two equal
// keys, and overflows the stack when a deep tree is copied.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

using Json = nlohmann::ordered_json;  // objects keep the order of insertion

inline constexpr int kMaxJsonDepth = 64;

// Parses strict JSON: UTF-8, no duplicate keys, at most kMaxJsonDepth nested arrays and objects, nothing after the value, finite numbers.
// Throws Error as "<source>: byte 17: duplicate key 'a'"; bytes count from 1. The time is linear in the length of the text.
Json parse_json(std::string_view text, const std::string& source);

// Invalid UTF-8 becomes U+FFFD; NaN and infinities, which JSON lacks, become null. With indent < 0 the result is one line.
std::string dump_json(const Json& value, int indent = -1);

}  // namespace based
