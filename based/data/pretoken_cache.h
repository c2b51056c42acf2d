// A cache of the ids of short pre-tokens. In English text nearly every pre-token has occurred before; a lookup takes a few nanoseconds,
// merging takes hundreds. Memory, and the number of probes of a lookup, are bounded for every text.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace based {

class PretokenCache {
 public:
  static constexpr size_t kMaxBytes = 16;

  // The bytes of a pre-token as two words, padded with zeros.
  struct Key {
    // `readable_end` is the end of readable memory after the piece: reading two whole words is faster than copying the bytes.
    Key(std::string_view piece, const char* readable_end) : size(static_cast<uint32_t>(piece.size())) {
      static_assert(std::endian::native == std::endian::little, "the mask below keeps the first bytes of little-endian words only");
      if (readable_end - piece.data() >= 16) {
        std::memcpy(words, piece.data(), 16);
        const auto mask = [](uint32_t bytes) { return bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * bytes) - 1; };
        words[0] &= mask(size);
        words[1] &= size > 8 ? mask(size - 8) : 0;
      } else {
        std::memcpy(words, piece.data(), piece.size());
      }
    }
    uint64_t words[2] = {0, 0};
    uint32_t size;
  };

  PretokenCache() : entries_(size_t{1} << kFirstBits) {}

  // Appends the cached ids. Returns false if the key is not cached.
  bool append(const Key& key, std::vector<int32_t>& ids) const {
    for (size_t probe = 0, at = place(key.words, key.size); probe < kProbes; ++probe, at = (at + 1) & (entries_.size() - 1)) {
      const Entry& entry = entries_[at];
      if (entry.size == 0) return false;
      if (entry.words[0] != key.words[0] || entry.words[1] != key.words[1] || entry.size != key.size) continue;
      const int32_t* first = entry.count <= kInline ? entry.ids : many_.data() + entry.ids[0];
      for (int i = 0; i < entry.count; ++i) ids.push_back(first[i]);
      return true;
    }
    return false;
  }

  // Stores the ids of a key that is not cached. If the cache is full, it is cleared first.
  void insert(const Key& key, std::span<const int32_t> ids);

 private:
  static constexpr int kFirstBits = 12, kLastBits = 18;  // entries: 128 KiB to 8 MiB
  static constexpr size_t kProbes = 8;
  static constexpr size_t kInline = 3;
  struct Entry {
    uint64_t words[2] = {0, 0};
    int32_t ids[kInline] = {0, 0, 0};  // for more than kInline ids, ids[0] is the index of the first in many_
    uint16_t size = 0;                 // 0: free
    uint16_t count = 0;
  };

  size_t place(const uint64_t* words, uint32_t size) const {
    const uint64_t first = (words[0] ^ words[0] >> 29 ^ size) * 0x9e3779b97f4a7c15u;
    const uint64_t mixed = first + (words[1] ^ words[1] >> 31) * 0xc2b2ae3d27d4eb4fu;
    return ((mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u) >> (64 - bits_);
  }
  Entry* free_entry(const uint64_t* words, uint32_t size);  // null if all probed places are taken
  void grow();

  int bits_ = kFirstBits;
  size_t used_ = 0;
  std::vector<Entry> entries_;
  std::vector<int32_t> many_;
};

}  // namespace based
