#include "based/data/document_shuffle.h"

#include <algorithm>
#include <cstring>

#include "based/core/random.h"

namespace based {
namespace {

constexpr int kBucketBits = 6;
constexpr size_t kBufferBytes = 256 << 10;
constexpr uint32_t kShuffleStream = 0x73687566;  // separates these random numbers from those of other uses of the seed

// Starts each document in a temporary file; its ids follow.
struct DocumentHeader {
  uint64_t key, tokens;
  uint32_t source, unused;
};

uint64_t key_of(uint64_t document, uint64_t seed) {
  const auto words = philox4x32({static_cast<uint32_t>(document), static_cast<uint32_t>(document >> 32), 0, kShuffleStream},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{words[1]} << 32 | words[0];
}

void append_bytes(std::vector<std::byte>& buffer, const void* bytes, size_t count) {
  const auto* first = static_cast<const std::byte*>(bytes);
  buffer.insert(buffer.end(), first, first + count);
}

struct IndexedDocument {
  uint64_t key, offset;
};

std::vector<IndexedDocument> index_bucket(std::span<const std::byte> bytes, size_t id_bytes) {
  std::vector<IndexedDocument> index;
  for (uint64_t offset = 0; offset < bytes.size();) {
    DocumentHeader header;
    std::memcpy(&header, bytes.data() + offset, sizeof header);
    index.push_back({header.key, offset});
    offset += sizeof header + header.tokens * id_bytes;
  }
  // Documents with equal keys, which are unlikely, keep their order.
  std::stable_sort(index.begin(), index.end(), [](const IndexedDocument& a, const IndexedDocument& b) { return a.key < b.key; });
  return index;
}

}  // namespace

DocumentShuffle::DocumentShuffle(const std::string& folder, int64_t seed, int64_t vocab_size)
    : seed_(static_cast<uint64_t>(seed)), id_bytes_(vocab_size <= 65536 ? 2 : 4) {
  for (int i = 0; i < 1 << kBucketBits; ++i) buckets_.push_back({ScratchFile(folder), {}});
}

void DocumentShuffle::add(std::span<const int32_t> ids, std::string_view source) {
  const DocumentHeader header{key_of(count_++, seed_), ids.size(), names_.number(source), 0};
  Bucket& bucket = buckets_[header.key >> (64 - kBucketBits)];
  append_bytes(bucket.buffer, &header, sizeof header);
  if (id_bytes_ == 4) {
    append_bytes(bucket.buffer, ids.data(), 4 * ids.size());
  } else {
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    append_bytes(bucket.buffer, narrow.data(), 2 * narrow.size());
  }
  if (bucket.buffer.size() >= kBufferBytes) flush(bucket);
}

void DocumentShuffle::flush(Bucket& bucket) {
  bucket.file.append(bucket.buffer);
  bucket.buffer.clear();
}

void DocumentShuffle::drain(const std::function<void(std::span<const int32_t>, std::string_view)>& document) {
  std::vector<int32_t> ids;
  std::vector<uint16_t> narrow;
  for (Bucket& bucket : buckets_) flush(bucket);
  while (!buckets_.empty()) {  // from the last bucket on, so that the vector frees each file
    const MappedFile file = buckets_.back().file.map();
    buckets_.pop_back();
    const std::vector<IndexedDocument> index = index_bucket(file.bytes(), id_bytes_);
    for (auto each = index.rbegin(); each != index.rend(); ++each) {
      DocumentHeader header;
      std::memcpy(&header, file.bytes().data() + each->offset, sizeof header);
      const std::byte* first = file.bytes().data() + each->offset + sizeof header;
      ids.resize(header.tokens);
      if (id_bytes_ == 4) {
        std::memcpy(ids.data(), first, 4 * ids.size());
      } else {
        narrow.resize(header.tokens);
        std::memcpy(narrow.data(), first, 2 * narrow.size());
        std::copy(narrow.begin(), narrow.end(), ids.begin());
      }
      document(ids, header.source == 0 ? std::string_view() : names_.names()[header.source - 1]);
    }
  }
}

}  // namespace based
