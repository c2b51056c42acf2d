// GPT-2's byte-level BPE: text is cut by pretokenizer.h; in each piece the adjacent pair that stands first in the list of merges is merged,
// leftmost first, until no pair is in the list.
#pragma once
#include <memory>

#include "based/data/tokenizer.h"

namespace based {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Vocabulary vocabulary);
  ~BpeTokenizer() override;
  // Time is O(n log n) in the longest pre-token and linear in their number. Throws Error for a pre-token of 2 GiB or more.
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  class Merger;
  class CachePool;
  std::unique_ptr<Merger> merger_;
  std::unique_ptr<CachePool> caches_;
};

}  // namespace based
