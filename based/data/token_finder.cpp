#include "based/data/token_finder.h"

#include <algorithm>

namespace based {

TokenFinder::TokenFinder(const Vocabulary& vocabulary, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) tokens_.push_back({vocabulary.tokens[static_cast<size_t>(id)], id});
  std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) { return a.text < b.text; });
  for (const Token& token : tokens_) starts_[static_cast<unsigned char>(token.text.front())] = true;
}

void TokenFinder::split(std::string_view text, std::vector<int32_t>& ids, const std::function<void(std::string_view)>& encode) const {
  size_t at = 0;
  while (const auto match = find(text, at)) {
    encode(text.substr(at, match->at - at));
    ids.push_back(match->id);
    at = match->at + match->size;
  }
  encode(text.substr(at));
}

// The first token at or after `from`.
std::optional<TokenFinder::Match> TokenFinder::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<unsigned char>(text[at])]) continue;
    if (const auto match = longest_at(text, at)) return match;
  }
  return std::nullopt;
}

// Narrows the range of tokens that agree with the text, byte by byte. A token that ends is the first of its range.
std::optional<TokenFinder::Match> TokenFinder::longest_at(std::string_view text, size_t at) const {
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
