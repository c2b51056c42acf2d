// Tokens that are found in a text before it is cut into pre-tokens, such as GPT-NeoX-20b's runs of spaces.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "based/data/vocabulary.h"

namespace based {

class AddedTokens {
 public:
  explicit AddedTokens(const Vocabulary& vocabulary);

  bool empty() const { return tokens_.empty(); }

  struct Match {
    size_t at, size;
    int32_t id;
  };
  // The first token at or after `from`; of those that start there, the longest.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Token {
    std::string_view text;  // in the vocabulary, which must live longer
    int32_t id;
  };
  std::optional<Match> longest_at(std::string_view text, size_t at) const;

  std::vector<Token> tokens_;  // sorted by text
  std::array<bool, 256> starts_{};
};

}  // namespace based
