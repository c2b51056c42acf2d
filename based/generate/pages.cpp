#include "based/generate/pages.h"

#include <numeric>
#include <utility>

#include "based/core/error.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

int64_t pages_for(int64_t tokens) { return (tokens + PagePool::page_tokens - 1) / PagePool::page_tokens; }

}  // namespace

// The pool has room for max_tokens tokens because each sequence leaves at most page_tokens − 1 places of its last page empty.
PagePool::PagePool(int64_t slots, int64_t max_tokens, torch::Device device)
    : max_tokens_(max_tokens), size_((max_tokens + slots * (page_tokens - 1)) / page_tokens) {
  table_ = torch::full({slots, pages_for(max_tokens)}, -1, torch::dtype(torch::kInt64).device(device));
  free_.resize(static_cast<size_t>(size_));
  std::iota(free_.rbegin(), free_.rend(), 0);
  tokens_.resize(static_cast<size_t>(slots));
  given_.resize(static_cast<size_t>(slots));
}

void PagePool::hold(int64_t slot, int64_t tokens) {
  auto& pages = given_[static_cast<size_t>(slot)];
  int64_t& length = tokens_[static_cast<size_t>(slot)];
  BASED_ASSERT(tokens >= length && tokens - length <= free_tokens());
  held_ += tokens - length;
  length = tokens;
  while (static_cast<int64_t>(pages.size()) < pages_for(tokens)) {
    changed_[slot * table_.size(1) + static_cast<int64_t>(pages.size())] = free_.back();
    pages.push_back(free_.back());
    free_.pop_back();
  }
}

void PagePool::release(int64_t slot) {
  auto& pages = given_[static_cast<size_t>(slot)];
  for (size_t i = 0; i < pages.size(); ++i) changed_[slot * table_.size(1) + static_cast<int64_t>(i)] = -1;
  free_.insert(free_.end(), pages.begin(), pages.end());
  pages.clear();
  held_ -= std::exchange(tokens_[static_cast<size_t>(slot)], 0);
}

void PagePool::upload() {
  if (changed_.empty()) return;
  std::vector<int64_t> entries;
  for (const auto& [entry, page] : changed_) entries.insert(entries.end(), {entry, page});
  const Tensor pairs = runtime::to_device(torch::tensor(entries).view({-1, 2}), table_.device());
  table_.view({-1}).index_copy_(0, pairs.select(1, 0), pairs.select(1, 1));
  changed_.clear();
}

}  // namespace based
