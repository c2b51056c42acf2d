#include "theory/p_hot.h"

#include <algorithm>
#include <limits>
#include <string>

#include "based/core/error.h"

namespace based::theory {
namespace {

// base^exponent, or nullopt if it exceeds `limit`.
std::optional<int64_t> power(int64_t base, int64_t exponent, int64_t limit) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (result > limit / base) return std::nullopt;
    result *= base;
  }
  return result;
}

}  // namespace

int64_t PHot::tokens() const {
  const auto count = power(base, blocks, std::numeric_limits<int64_t>::max());
  BASED_ASSERT(count);
  return *count;
}

std::vector<int64_t> PHot::digits(int64_t token) const {
  BASED_ASSERT(token >= 0 && token < tokens());
  std::vector<int64_t> result(static_cast<size_t>(blocks));
  for (auto digit = result.rbegin(); digit != result.rend(); ++digit, token /= base) *digit = token % base;
  return result;
}

std::vector<int64_t> PHot::encode(int64_t token) const {
  std::vector<int64_t> row(static_cast<size_t>(width()));
  const auto digit = digits(token);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t hot = digit[static_cast<size_t>(block)];
    if (hot < block_width()) row[static_cast<size_t>(block * block_width() + hot)] = 1;
  }
  return row;
}

std::optional<int64_t> PHot::decode(std::span<const int64_t> row) const {
  if (static_cast<int64_t>(row.size()) != width()) return std::nullopt;
  int64_t token = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const auto bits = row.subspan(static_cast<size_t>(block * block_width()), static_cast<size_t>(block_width()));
    const auto ones = std::count(bits.begin(), bits.end(), 1);
    const auto zeros = std::count(bits.begin(), bits.end(), 0);
    if (ones + zeros != block_width() || ones > 1 || (ones == 0 && !almost)) return std::nullopt;
    token = token * base + (std::find(bits.begin(), bits.end(), 1) - bits.begin());
  }
  return token;
}

PHot p_hot(int64_t tokens, int64_t blocks, bool almost) {
  if (blocks < 1) throw UsageError("p-hot encoding: blocks must be at least 1, got " + std::to_string(blocks));
  for (int64_t base = 2;; ++base) {
    const auto reached = power(base, blocks, tokens);
    if (!reached) break;
    if (*reached == tokens) return {blocks, base, almost};
  }
  throw UsageError("p-hot encoding: " + std::to_string(tokens) + " tokens are no power with exponent " + std::to_string(blocks) +
                   " of a base of at least 2; give as many tokens as base^blocks");
}

}  // namespace based::theory
