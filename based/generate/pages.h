// The pages of a fixed pool of cache memory, and which slot holds which of them. Each sequence has as many pages as its length needs.
#pragma once
#include <map>
#include <vector>

#include "based/mixers/kit/state.h"

namespace based {

class PagePool {
 public:
  static constexpr int64_t page_tokens = 64;

  // Pages for any `slots` sequences that together hold at most max_tokens tokens.
  PagePool(int64_t slots, int64_t max_tokens, torch::Device device);

  StatePages pages() const { return {table_, page_tokens}; }
  int64_t size() const { return size_; }

  int64_t max_tokens() const { return max_tokens_; }
  int64_t free_tokens() const { return max_tokens_ - held_; }
  // Gives the slot pages for a sequence of this length; free_tokens() must allow it. The table in pages() changes with the next upload().
  void hold(int64_t slot, int64_t tokens);
  void release(int64_t slot);
  int64_t tokens(int64_t slot) const { return tokens_[static_cast<size_t>(slot)]; }
  // Copies the entries that have changed since the last call to the device, in the order of the current stream.
  void upload();

 private:
  int64_t max_tokens_, held_ = 0, size_;
  Tensor table_;
  std::vector<int64_t> free_;                // pages that no slot holds
  std::vector<int64_t> tokens_;              // [slots]: the sequence's length
  std::vector<std::vector<int64_t>> given_;  // [slots]: the slot's pages
  std::map<int64_t, int64_t> changed_;       // index in the flattened table -> page
};

}  // namespace based
