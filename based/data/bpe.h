// GPT-2's byte-level BPE. pretokenizer.h splits the text into pre-tokens. In each of them, the adjacent pair that is earliest in the list
// of merges is merged, the leftmost occurrence first, until no pair is in the list.
#pragma once
#include <memory>

#include "based/data/tokenizer.h"

namespace based {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Vocabulary vocabulary);
  ~BpeTokenizer() override;
  // Takes O(n log n) time in the length of a pre-token, and linear time in their number. Throws Error for a pre-token of 2 GiB or more.
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  class Merger;
  class CachePool;
  std::unique_ptr<Merger> merger_;
  std::unique_ptr<CachePool> caches_;
};

}  // namespace based
