// Token shards. As with state files, the target also corrects the two checksums, to reach the checks after them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "based/core/hash.h"
#include "based/data/shards.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

void check(std::span<const std::byte> file) {
  accept_or_refuse([&] { parse_shard(file, "fuzz.tokens", ShardCheck::header); });
  accept_or_refuse([&] {
    const TokenShard shard = parse_shard(file, "fuzz.tokens", ShardCheck::whole);
    require(shard.tokens <= static_cast<int64_t>(file.size()), "more tokens than bytes");
    std::vector<int32_t> ids(static_cast<size_t>(shard.tokens));
    shard.copy(0, ids);
    require(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < shard.vocab_size; }),
            "an id outside the vocabulary");
    int64_t before = -1;
    for (int64_t document = 0; document < shard.documents; ++document) {
      const int64_t start = shard.document_start(document);
      require(start > before && start < shard.tokens, "documents out of order");
      before = start;
      const int64_t source = shard.document_source(document);
      require(source >= -1 && source < static_cast<int64_t>(shard.source_names.size()), "an unknown source");
    }
    for (const std::string_view name : shard.source_names) {
      const auto* first = reinterpret_cast<const std::byte*>(name.data());
      require(first >= file.data() && first + name.size() < file.data() + file.size(), "a name outside the file");
    }
  });
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  check(input);
  constexpr size_t content_hash_at = 48, header_hash_at = 64, header_size = 72;
  if (input.size() < header_size) return;
  std::vector<std::byte> mended(input.begin(), input.end());
  const uint64_t content = xxh3_64(std::span(mended).subspan(header_size));
  std::memcpy(mended.data() + content_hash_at, &content, sizeof(content));
  const uint64_t header = xxh3_64(std::span(mended).first(header_hash_at));
  std::memcpy(mended.data() + header_hash_at, &header, sizeof(header));
  check(mended);
}

}  // namespace based
