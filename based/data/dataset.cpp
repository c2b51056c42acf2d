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

// The first document that starts at token `first` or later, or the number of documents.
int64_t first_document(const TokenShard& shard, int64_t first) {
  int64_t low = 0, high = shard.documents;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    shard.document_start(middle) < first ? low = middle + 1 : high = middle;
  }
  return low;
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
  first_token_ = first_document_ = {0};
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
    if (!std::equal(source_names_.begin(), source_names_.end(), shard.source_names.begin(),
                    shard.source_names.begin() + static_cast<std::ptrdiff_t>(std::min(source_names_.size(), shard.source_names.size())))) {
      throw Error(name + ": byte " + std::to_string(shard.names_offset) + ": the names of sources do not continue those of " +
                  files_.back().path());
    }
    source_names_.assign(shard.source_names.begin(), shard.source_names.end());
    if (expected > 0 && (shard.tokenizer_hash != tokenizer_hash() || shard.vocab_size != vocab_size())) {
      throw Error(name + ": byte 40: made with another tokenizer than " + files_.front().path());
    }
    first_token_.push_back(first_token_.back() + shard.tokens);
    first_document_.push_back(first_document_.back() + shard.documents);
    checksums.push_back(shard.checksum);
    shards_.push_back(shard);
    files_.push_back(std::move(each.file));
  }
  checksums.push_back(tokenizer_hash());
  hash_ = xxh3_64(std::as_bytes(std::span(checksums)));
}

TokenDataset::TokenDataset(std::string name, std::vector<int32_t> tokens, std::vector<uint64_t> starts, const Tokenizer& tokenizer,
                           DocumentSources sources)
    : path_(std::move(name)),
      memory_tokens_(std::move(tokens)),
      memory_starts_(std::move(starts)),
      memory_sources_(std::move(sources.numbers)),
      source_names_(std::move(sources.names)) {
  BASED_ASSERT(memory_sources_.empty() || memory_sources_.size() == memory_starts_.size());
  TokenShard shard;
  shard.tokens = static_cast<int64_t>(memory_tokens_.size());
  shard.documents = static_cast<int64_t>(memory_starts_.size());
  shard.vocab_size = tokenizer.vocab_size();
  shard.tokenizer_hash = tokenizer.hash();
  shard.token_bytes = sizeof(int32_t);
  shard.last = true;
  shard.token_data = std::as_bytes(std::span(memory_tokens_)).data();
  shard.document_data = std::as_bytes(std::span(memory_starts_)).data();
  if (!memory_sources_.empty()) shard.source_data = std::as_bytes(std::span(memory_sources_)).data();
  first_token_ = {0, shard.tokens};
  first_document_ = {0, shard.documents};
  shards_.push_back(shard);
  const uint64_t parts[] = {xxh3_64(std::as_bytes(std::span(memory_tokens_))), xxh3_64(std::as_bytes(std::span(memory_starts_))),
                            shard.tokenizer_hash};
  hash_ = xxh3_64(std::as_bytes(std::span(parts)));
}

void TokenDataset::require_tokenizer(const Tokenizer& tokenizer) const {
  if (tokenizer.hash() == tokenizer_hash() && tokenizer.vocab_size() == vocab_size()) return;
  throw Error((files_.empty() ? path_ : files_.front().path()) + ": byte 40: packed with another tokenizer (" +
              std::to_string(vocab_size()) + " tokens, hash " + hex(tokenizer_hash()) + ") than the one given (" +
              std::to_string(tokenizer.vocab_size()) + " tokens, hash " + hex(tokenizer.hash()) + "); pack the text again");
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
    for (int64_t document = first_document(shard, first - base); document < shard.documents; ++document) {
      const int64_t start = base + shard.document_start(document);
      if (start >= last) return;
      out.push_back(start);
    }
  }
}

int64_t TokenDataset::count_document_starts(int64_t first, int64_t last) const {
  int64_t count = 0;
  for (size_t s = 0; s < shards_.size(); ++s) {
    const int64_t base = first_token_[s];
    if (first_token_[s + 1] > first && base < last)
      count += first_document(shards_[s], last - base) - first_document(shards_[s], first - base);
  }
  return count;
}

int64_t TokenDataset::document_at(int64_t token) const {
  BASED_ASSERT(token >= 0 && token < tokens());
  const auto shard = static_cast<size_t>(std::upper_bound(first_token_.begin(), first_token_.end(), token) - first_token_.begin()) - 1;
  return first_document_[shard] + first_document(shards_[shard], token - first_token_[shard] + 1) - 1;
}

size_t TokenDataset::shard_of_document(int64_t document) const {
  BASED_ASSERT(document >= 0 && document < documents());
  return static_cast<size_t>(std::upper_bound(first_document_.begin(), first_document_.end(), document) - first_document_.begin()) - 1;
}

int64_t TokenDataset::document_start(int64_t document) const {
  const size_t shard = shard_of_document(document);
  return first_token_[shard] + shards_[shard].document_start(document - first_document_[shard]);
}

int64_t TokenDataset::document_source(int64_t document) const {
  const size_t shard = shard_of_document(document);
  return shards_[shard].document_source(document - first_document_[shard]);
}

std::vector<TokenDataset::SourceSize> TokenDataset::source_sizes() const {
  std::vector<SourceSize> sizes(source_names_.size() + 1);
  for (const TokenShard& shard : shards_) {
    for (int64_t document = 0; document < shard.documents; ++document) {
      const int64_t source = shard.document_source(document);
      const int64_t end = document + 1 < shard.documents ? shard.document_start(document + 1) : shard.tokens;
      SourceSize& size = sizes[source < 0 ? source_names_.size() : static_cast<size_t>(source)];
      ++size.documents;
      size.tokens += end - shard.document_start(document);
    }
  }
  return sizes;
}

}  // namespace based
