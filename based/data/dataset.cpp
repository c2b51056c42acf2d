#include <algorithm>
#include <filesystem>

#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/text.h"
#include "based/data/shards.h"

namespace based {
namespace {

std::vector<std::string> shard_files(const std::string& path) {
  if (!is_folder(path)) return {path};
  std::vector<std::string> files;
  for (const std::string& name : names_in(path))
    if (name.ends_with(".tokens")) files.push_back((std::filesystem::path(path) / name).string());
  if (files.empty()) throw Error(path + ": no token shards (*.tokens) in the folder");
  return files;
}

}  // namespace

TokenDataset::TokenDataset(const std::string& path, ShardCheck check) : path_(path) {
  struct Opened {
    MappedFile file;
    TokenShard shard;
  };
  std::vector<Opened> opened;
  for (const std::string& name : shard_files(path)) {
    MappedFile file(name);
    const TokenShard shard = parse_shard(file.bytes(), name, check);
    opened.push_back({std::move(file), shard});
  }
  std::sort(opened.begin(), opened.end(), [](const Opened& a, const Opened& b) { return a.shard.number < b.shard.number; });
  std::vector<uint64_t> checksums;
  first_token_.push_back(0);
  for (Opened& each : opened) {
    const TokenShard& shard = each.shard;
    const std::string& name = each.file.path();
    const size_t expected = shards_.size();
    if (shard.number != expected) {
      throw Error(name + ": byte 56: is shard " + std::to_string(shard.number) + " where shard " + std::to_string(expected) +
                  " was expected: one is missing or there twice");
    }
    if (shard.last != (expected + 1 == opened.size())) {
      throw Error(name + ": byte 60: " +
                  (shard.last ? "is the last shard, yet others follow" : "is not the last shard, yet none follows: the set is not whole"));
    }
    if (expected > 0 && (shard.tokenizer_hash != tokenizer_hash() || shard.vocab_size != vocab_size())) {
      throw Error(name + ": byte 40: made with another tokenizer than " + files_.front().path());
    }
    first_token_.push_back(first_token_.back() + shard.tokens);
    documents_ += shard.documents;
    checksums.push_back(shard.checksum);
    shards_.push_back(shard);
    files_.push_back(std::move(each.file));
  }
  checksums.push_back(tokenizer_hash());
  hash_ = xxh3_64(std::as_bytes(std::span(checksums)));
}

TokenDataset::TokenDataset(std::string name, std::vector<int32_t> tokens, std::vector<uint64_t> starts, const Tokenizer& tokenizer)
    : path_(std::move(name)), memory_tokens_(std::move(tokens)), memory_starts_(std::move(starts)) {
  TokenShard shard;
  shard.tokens = static_cast<int64_t>(memory_tokens_.size());
  shard.documents = documents_ = static_cast<int64_t>(memory_starts_.size());
  shard.vocab_size = tokenizer.vocab_size();
  shard.tokenizer_hash = tokenizer.hash();
  shard.token_bytes = sizeof(int32_t);
  shard.last = true;
  shard.token_data = std::as_bytes(std::span(memory_tokens_)).data();
  shard.document_data = std::as_bytes(std::span(memory_starts_)).data();
  first_token_ = {0, shard.tokens};
  shards_.push_back(shard);
  const uint64_t parts[] = {xxh3_64(std::as_bytes(std::span(memory_tokens_))), xxh3_64(std::as_bytes(std::span(memory_starts_))),
                            shard.tokenizer_hash};
  hash_ = xxh3_64(std::as_bytes(std::span(parts)));
}

void TokenDataset::require_tokenizer(const Tokenizer& tokenizer) const {
  if (tokenizer.hash() == tokenizer_hash() && tokenizer.vocab_size() == vocab_size()) return;
  throw Error((files_.empty() ? path_ : files_.front().path()) + ": byte 40: packed with another tokenizer (" +
              std::to_string(vocab_size()) + " tokens, hash " + std::to_string(tokenizer_hash()) + ") than the one given (" +
              std::to_string(tokenizer.vocab_size()) + " tokens, hash " + std::to_string(tokenizer.hash()) + "); pack the text again");
}

void TokenDataset::copy(int64_t first, std::span<int32_t> out) const {
  BASED_ASSERT(first >= 0 && first <= tokens() && static_cast<int64_t>(out.size()) <= tokens() - first);
  auto shard = static_cast<size_t>(std::upper_bound(first_token_.begin(), first_token_.end(), first) - first_token_.begin()) - 1;
  while (!out.empty()) {
    const int64_t within = first - first_token_[shard];
    const auto count = std::min(out.size(), static_cast<size_t>(shards_[shard].tokens - within));
    shards_[shard].copy(within, out.first(count));
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
    ++shard;
  }
}

void TokenDataset::append_document_starts(int64_t first, int64_t last, std::vector<int64_t>& out) const {
  for (size_t s = 0; s < shards_.size(); ++s) {
    const int64_t base = first_token_[s];
    if (first_token_[s + 1] <= first || base >= last) continue;
    const TokenShard& shard = shards_[s];
    int64_t low = 0, high = shard.documents;  // binary search for the first document that starts at `first` or later
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      base + shard.document_start(middle) < first ? low = middle + 1 : high = middle;
    }
    for (; low < shard.documents && base + shard.document_start(low) < last; ++low) out.push_back(base + shard.document_start(low));
  }
}

}  // namespace based
