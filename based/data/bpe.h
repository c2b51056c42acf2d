// GPT-2's byte-level BPE. pretokenizer.h splits the text into pre-tokens. In each of them, the adjacent pair that is earliest in the list
// of merges is merged, the leftmost occurrence first, until no pair is in the list.
#pragma once
#include <memory>

#include "based/data/tokenizer.h"

namespace based {

class PretokenCache;

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Vocabulary vocabulary);
  ~BpeTokenizer() override;
  // Normalizes the text and finds added tokens, where the vocabulary asks for it, then cuts and merges. Takes O(n log n) time in the length
  // of a pre-token, and linear time in their number. Throws Error for a pre-token of 2 GiB or more, and for a byte without a token, which
  // can only be one that is in no valid UTF-8.
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  class Merger;
  class CachePool;
  void encode_pieces(std::string_view text, PretokenCache& cache, std::vector<int32_t>& ids) const;

  TokenFinder added_;
  std::unique_ptr<Merger> merger_;
  std::unique_ptr<CachePool> caches_;
};

}  // namespace based
