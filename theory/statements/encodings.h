// The encodings for trials of statements about (almost) p-hot tokens.
#pragma once
#include <string>
#include <vector>

#include "theory/p_hot.h"

namespace based::theory {

// All encodings with p ≥ 1 and base ≥ 2 of at most `tokens` tokens.
inline std::vector<PHot> encodings(int64_t tokens, bool almost) {
  std::vector<PHot> result;
  for (int64_t blocks = 1; int64_t{1} << blocks <= tokens; ++blocks) {
    for (int64_t base = 2; PHot{blocks, base, almost}.tokens() <= tokens; ++base) result.push_back({blocks, base, almost});
  }
  return result;
}

inline std::string text_of(const PHot& encoding) {
  return (encoding.almost ? "almost " : "") + std::to_string(encoding.blocks) + "-hot, c = " + std::to_string(encoding.tokens());
}

// The widths of the blocks of `tokens` concatenated tokens.
inline std::vector<int> block_widths(const PHot& encoding, int64_t tokens) {
  return std::vector<int>(static_cast<size_t>(tokens * encoding.blocks), static_cast<int>(encoding.block_width()));
}

}  // namespace based::theory
