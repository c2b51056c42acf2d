#include "based/data/pretoken_cache.h"

#include <algorithm>
#include <utility>

namespace based {

void PretokenCache::insert(const Key& key, std::span<const int32_t> ids) {
  if (2 * used_ > entries_.size()) grow();
  Entry* entry = free_entry(key.words, key.size);
  if (!entry) return;  // adversarial text with collisions is merged each time: slower, but still linear
  std::copy(key.words, key.words + 2, entry->words);
  entry->size = static_cast<uint16_t>(key.size);
  entry->count = static_cast<uint16_t>(ids.size());
  ++used_;
  if (ids.size() <= kInline) {
    std::copy(ids.begin(), ids.end(), entry->ids);
  } else {
    entry->ids[0] = static_cast<int32_t>(many_.size());
    many_.insert(many_.end(), ids.begin(), ids.end());
  }
}

PretokenCache::Entry* PretokenCache::free_entry(const uint64_t* words, uint32_t size) {
  for (size_t probe = 0, at = place(words, size); probe < kProbes; ++probe, at = (at + 1) & (entries_.size() - 1)) {
    if (entries_[at].size == 0) return &entries_[at];
  }
  return nullptr;
}

void PretokenCache::grow() {
  const std::vector<Entry> old = std::exchange(entries_, {});
  used_ = 0;
  const bool full = bits_ == kLastBits;
  if (full) many_.clear();
  if (!full) bits_ += 2;
  entries_.assign(size_t{1} << bits_, Entry());
  if (full) return;
  for (const Entry& entry : old) {
    if (entry.size == 0) continue;
    if (Entry* place = free_entry(entry.words, entry.size)) {
      *place = entry;
      ++used_;
    }
  }
}

}  // namespace based
