#include "based/data/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <queue>

#include "based/data/nfc.h"
#include "based/data/pretoken_cache.h"
#include "based/data/pretokenizer.h"

namespace based {

// The merges as a hash table of pairs, and two algorithms that apply them: one for short and one for long pieces.
class BpeTokenizer::Merger {
 public:
  explicit Merger(const Vocabulary& vocabulary) {
    byte_id_.fill(-1);
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      const std::string& token = vocabulary.tokens[id];
      if (token.size() == 1) byte_id_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    }
    lacks_bytes_ = std::find(byte_id_.begin(), byte_id_.end(), -1) != byte_id_.end();
    size_t size = 16;
    while (size < 2 * vocabulary.merges.size()) size *= 2;
    table_.resize(size);
    while ((size_t{1} << (64 - shift_)) < size) --shift_;
    for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      const Merge& merge = vocabulary.merges[rank];
      Slot& slot = table_[find(merge.left, merge.right)];
      slot = {pair_of(merge.left, merge.right), static_cast<uint32_t>(rank), merge.result};
    }
  }

  // Throws Error if a byte of the text has no token.
  void require_tokens(std::string_view text) const {
    if (!lacks_bytes_) return;
    for (const char c : text)
      if (const auto byte = static_cast<unsigned char>(c); byte_id_[byte] < 0)
        throw Error("cannot encode: byte " + std::to_string(byte) + " has no token in this vocabulary; it is in no valid UTF-8");
  }

  void append(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() > kShort) return append_long(piece, ids);
    std::array<int32_t, kShort> symbols;
    std::array<const Slot*, kShort> merges;  // merges[i] belongs to symbols i and i + 1
    size_t count = piece.size();
    for (size_t i = 0; i < count; ++i) symbols[i] = byte_id_[static_cast<unsigned char>(piece[i])];
    for (size_t i = 0; i + 1 < count; ++i) merges[i] = &table_[find(symbols[i], symbols[i + 1])];
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i) {
        if (merges[i]->rank < merges[best]->rank) best = i;
      }
      if (merges[best]->rank == kNoRank) break;
      symbols[best] = merges[best]->result;
      --count;
      for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
      for (size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
      if (best + 1 < count) merges[best] = &table_[find(symbols[best], symbols[best + 1])];
      if (best > 0) merges[best - 1] = &table_[find(symbols[best - 1], symbols[best])];
    }
    ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
  }

 private:
  static constexpr size_t kShort = 32;  // up to this many bytes a linear search for the best merge is faster than a heap
  static constexpr uint32_t kNoRank = 0xffffffff;
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = kNoRank;
    int32_t result = -1;
  };

  static uint64_t pair_of(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }

  // The slot of a pair, or the free slot (rank kNoRank) where it would be inserted. At most half of the table is used, so the search ends.
  size_t find(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    size_t at = (pair * 0x9e3779b97f4a7c15u) >> shift_;
    while (table_[at].pair != pair && table_[at].rank != kNoRank) at = (at + 1) & (table_.size() - 1);
    return at;
  }

  // Uses a linked list of symbols and a heap of (rank, position). Heap entries whose rank is no longer that of their position are skipped.
  void append_long(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() > INT32_MAX)
      throw Error("cannot encode: " + std::to_string(piece.size()) + " bytes without a place to cut (limit 2 GiB)");
    struct Symbol {
      int32_t id, previous, next;
      uint32_t rank;  // the rank of this symbol's pair with the next one
    };
    const auto count = static_cast<int32_t>(piece.size());
    std::vector<Symbol> symbols(piece.size());
    const auto at = [&symbols](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    for (int32_t i = 0; i < count; ++i) {
      at(i) = {byte_id_[static_cast<unsigned char>(piece[static_cast<size_t>(i)])], i - 1, i + 1 < count ? i + 1 : -1, kNoRank};
    }
    std::vector<uint64_t> entries;
    entries.reserve(piece.size());
    const auto rank_pair = [&](int32_t i) {
      Symbol& symbol = at(i);
      symbol.rank = symbol.next < 0 ? kNoRank : table_[find(symbol.id, at(symbol.next).id)].rank;
      return static_cast<uint64_t>(symbol.rank) << 32 | static_cast<uint32_t>(i);
    };
    for (int32_t i = 0; i < count; ++i) {
      const uint64_t entry = rank_pair(i);
      if (at(i).rank != kNoRank) entries.push_back(entry);
    }
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>(), std::move(entries));
    while (!heap.empty()) {
      const uint64_t entry = heap.top();
      heap.pop();
      const auto i = static_cast<int32_t>(entry & 0xffffffff);
      Symbol& left = at(i);
      if (left.rank == kNoRank || left.rank != entry >> 32) continue;
      Symbol& right = at(left.next);
      left.id = table_[find(left.id, right.id)].result;
      left.next = right.next;
      right.rank = kNoRank;
      if (left.next >= 0) at(left.next).previous = i;
      for (const int32_t changed : {i, left.previous}) {
        if (changed < 0) continue;
        const uint64_t again = rank_pair(changed);
        if (at(changed).rank != kNoRank) heap.push(again);
      }
    }
    for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
  }

  std::array<int32_t, 256> byte_id_{};
  bool lacks_bytes_ = false;
  std::vector<Slot> table_;
  int shift_ = 64;
};

// The caches that are not in use by a call. Several threads can share the tokenizer, and each gets a warm cache.
class BpeTokenizer::CachePool {
 public:
  std::unique_ptr<PretokenCache> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<PretokenCache>();
    auto cache = std::move(free_.back());
    free_.pop_back();
    return cache;
  }
  void give_back(std::unique_ptr<PretokenCache> cache) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(cache));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PretokenCache>> free_;
};

BpeTokenizer::BpeTokenizer(Vocabulary vocabulary)
    : Tokenizer(std::move(vocabulary)),
      added_(this->vocabulary(), this->vocabulary().added),
      merger_(std::make_unique<Merger>(this->vocabulary())),
      caches_(std::make_unique<CachePool>()) {}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  merger_->require_tokens(text);
  std::string normalized;
  if (vocabulary().nfc && !is_nfc_at_sight(text)) {
    normalized = to_nfc(text);
    text = normalized;
  }
  std::unique_ptr<PretokenCache> cache = caches_->take();
  added_.split(text, ids, [&](std::string_view rest) { encode_pieces(rest, *cache, ids); });
  caches_->give_back(std::move(cache));
}

void BpeTokenizer::encode_pieces(std::string_view text, PretokenCache& cache, std::vector<int32_t>& ids) const {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const char* const stop = pretoken_end(at, end);
    const std::string_view piece(at, static_cast<size_t>(stop - at));
    if (piece.size() > PretokenCache::kMaxBytes) {
      merger_->append(piece, ids);
    } else {
      const PretokenCache::Key key(piece, end);
      if (!cache.append(key, ids)) {
        const size_t before = ids.size();
        merger_->append(piece, ids);
        cache.insert(key, std::span(ids).subspan(before));
      }
    }
    at = stop;
  }
}

}  // namespace based
