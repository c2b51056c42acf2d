// Shuffles documents that do not fit into memory. Each document gets a random key from the seed and its number; the shuffled order is that
// of descending keys, so it depends on nothing else. The documents are first distributed over temporary files by the upper bits of their
// keys, then each file is read in the order of its keys. Memory holds a buffer for each file and an index of the documents of one file.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/files.h"
#include "based/data/shards.h"

namespace based {

class DocumentShuffle {
 public:
  // The temporary files are on the file system of `folder` and vanish with the process. Ids are below vocab_size.
  DocumentShuffle(const std::string& folder, int64_t seed, int64_t vocab_size);

  void add(std::span<const int32_t> ids, std::string_view source);  // throws Error if the disk is full
  // Calls `document` for all documents in the shuffled order, and frees each temporary file after its documents. At most once.
  void drain(const std::function<void(std::span<const int32_t> ids, std::string_view source)>& document);

 private:
  struct Bucket {
    ScratchFile file;
    std::vector<std::byte> buffer;
  };
  void flush(Bucket& bucket);

  uint64_t seed_, count_ = 0;
  size_t id_bytes_;
  std::vector<Bucket> buckets_;
  SourceNames names_;
};

}  // namespace based
