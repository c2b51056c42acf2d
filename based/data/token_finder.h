// Finds tokens that stand in a text as they are, before the rest of it is encoded: special tokens, and those that a vocabulary adds, such
// as GPT-NeoX-20b's runs of spaces.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "based/data/vocabulary.h"

namespace based {

class TokenFinder {
 public:
  // `ids` are tokens of the vocabulary, which must live longer.
  TokenFinder(const Vocabulary& vocabulary, const std::vector<int32_t>& ids);

  // Appends the tokens that are found to `ids`, and calls `encode` for the text before, between and after them, in order. Where several
  // tokens start at one place, the longest is found.
  void split(std::string_view text, std::vector<int32_t>& ids, const std::function<void(std::string_view)>& encode) const;

 private:
  struct Token {
    std::string_view text;
    int32_t id;
  };
  struct Match {
    size_t at, size;
    int32_t id;
  };
  std::optional<Match> find(std::string_view text, size_t from) const;
  std::optional<Match> longest_at(std::string_view text, size_t at) const;

  std::vector<Token> tokens_;  // sorted by text
  std::array<bool, 256> starts_{};
};

}  // namespace based
