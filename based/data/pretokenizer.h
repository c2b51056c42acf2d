// GPT-2 cuts text into pre-tokens before it merges bytes; no token reaches across a cut. The pattern, as published:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// It is matched by hand: in time linear in the text, and several times faster than by a regular-expression library.
#pragma once

namespace based {

// The end of the pre-token that starts at `at`; needs at < end. A byte that is no valid UTF-8 counts as a symbol (neither space, letter nor
// number).
const char* pretoken_end(const char* at, const char* end);

}  // namespace based
