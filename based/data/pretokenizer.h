// GPT-2 splits text into pre-tokens before it merges bytes; no token spans two of them. The published pattern is
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// It is implemented by hand, in linear time and several times faster than a regular-expression library.
#pragma once

namespace based {

// The end of the pre-token that starts at `at`, at < end. A byte that is not valid UTF-8 counts as a symbol (neither space, letter nor
// number).
const char* pretoken_end(const char* at, const char* end);

}  // namespace based
