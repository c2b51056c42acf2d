#include "based/data/added_tokens.h"

#include <algorithm>

namespace based {

AddedTokens::AddedTokens(const Vocabulary& vocabulary) {
  for (const int32_t id : vocabulary.added) tokens_.push_back({vocabulary.tokens[static_cast<size_t>(id)], id});
  std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) { return a.text < b.text; });
  for (const Token& token : tokens_) starts_[static_cast<unsigned char>(token.text.front())] = true;
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<unsigned char>(text[at])]) continue;
    if (const auto match = longest_at(text, at)) return match;
  }
  return std::nullopt;
}

// Narrows the range of tokens that agree with the text, byte by byte. A token that ends is the first of its range.
std::optional<AddedTokens::Match> AddedTokens::longest_at(std::string_view text, size_t at) const {
  std::optional<Match> longest;
  auto first = tokens_.begin(), last = tokens_.end();
  for (size_t size = 0; at + size < text.size();) {
    const auto byte_of = [size](const Token& token) { return static_cast<unsigned char>(token.text[size]); };
    const auto byte = static_cast<unsigned char>(text[at + size]);
    first = std::partition_point(first, last, [&](const Token& token) { return byte_of(token) < byte; });
    last = std::partition_point(first, last, [&](const Token& token) { return byte_of(token) == byte; });
    ++size;
    if (first == last) break;
    if (first->text.size() == size) longest = Match{at, size, first++->id};
  }
  return longest;
}

}  // namespace based
