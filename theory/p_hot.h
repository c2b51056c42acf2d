// The paper's p-hot and almost p-hot encodings: each digit of a token in base c^(1/p) is encoded one-hot, in one block. The almost p-hot
// encoding drops the last bit of each block.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace based::theory {

struct PHot {
  int64_t blocks;  // p ≥ 1
  int64_t base;    // c^(1/p) ≥ 2
  bool almost = false;

  int64_t tokens() const;  // c = base^blocks
  int64_t block_width() const { return almost ? base - 1 : base; }
  int64_t width() const { return blocks * block_width(); }  // d

  std::vector<int64_t> digits(int64_t token) const;  // one per block, the most significant first
  std::vector<int64_t> encode(int64_t token) const;  // width() zeros and ones
  // The token that a row of width() numbers encodes, or nullopt if it encodes no token.
  std::optional<int64_t> decode(std::span<const int64_t> row) const;
};

// The encoding of `tokens` tokens in `blocks` blocks. Throws UsageError unless tokens = base^blocks for a base of at least 2.
PHot p_hot(int64_t tokens, int64_t blocks, bool almost = false);

}  // namespace based::theory
