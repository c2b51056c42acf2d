// The one door to nlohmann-json. Text from outside goes through parse_json, which nlohmann alone would not make safe: it keeps the last of
// two equal keys without a word, and overflows the stack when a deep tree is copied.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

using Json = nlohmann::ordered_json;  // objects keep the order written

inline constexpr int kMaxJsonDepth = 64;

// Strict JSON: UTF-8, no duplicate keys, at most kMaxJsonDepth nested arrays and objects, nothing after the value, finite numbers.
// Throws Error as "<source>: byte 17: duplicate key 'a'" (bytes count from 1). Time is linear in the text, whatever the number of keys.
Json parse_json(std::string_view text, const std::string& source);

// Never throws for invalid UTF-8 (it becomes U+FFFD); NaN and infinities, which JSON lacks, become null. indent < 0: one line.
std::string dump_json(const Json& value, int indent = -1);

}  // namespace based
