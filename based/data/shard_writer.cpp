#include <cstdio>
#include <cstring>

#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/log.h"
#include "based/core/output_folder.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"
#include "based/data/shards.h"

namespace based {
namespace {

template <class T>
void put(std::vector<std::byte>& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

size_t padded_size(size_t bytes) { return (bytes + 7) / 8 * 8; }

// Appends the part of a shard of version 2 that says where the documents are from.
void append_sources(std::vector<std::byte>& body, const std::vector<uint32_t>& sources, const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined.append(name).push_back('\0');
  const size_t sources_at = body.size(), names_at = sources_at + padded_size(4 * sources.size());
  body.resize(names_at + 16 + padded_size(joined.size()));
  std::memcpy(body.data() + sources_at, sources.data(), 4 * sources.size());
  put(body, names_at, static_cast<uint64_t>(names.size()));
  put(body, names_at + 8, static_cast<uint64_t>(joined.size()));
  std::memcpy(body.data() + names_at + 16, joined.data(), joined.size());
}

std::string shard_name(int64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".tokens";
}

bool is_unfinished(const std::vector<std::string>& shards) {
  try {
    for (const std::string& path : shards) {
      if (parse_shard(MappedFile(path).bytes(), path, ShardCheck::header).last) return false;
    }
  } catch (const Error&) {  // a writer does not leave such files
    return false;
  }
  return true;
}

// Removes the incomplete set of a killed writer. A complete set, or files that may be part of one, stay.
void clear(const std::string& folder) {
  std::vector<std::string> shards;
  for (const std::string& name : names_in(folder))
    if (name.ends_with(".tokens")) shards.push_back(folder + "/" + name);
  if (!is_unfinished(shards)) require_free(folder, {"--out", {shards_holding()}, {}, false}, false);
  if (!shards.empty()) {
    log_warning(folder + ": " + std::to_string(shards.size()) + " shards are of a set that was never finished; they are removed");
  }
  for (const std::string& path : shards) remove_file(path);
  remove_stale_temporaries(folder);
}

}  // namespace

uint32_t SourceNames::number(std::string_view name) {
  if (name.empty()) return 0;
  BASED_ASSERT(name.find('\0') == std::string_view::npos);
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  constexpr size_t kMostNames = 65535;
  if (names_.size() == kMostNames) {
    throw Error("more than " + std::to_string(kMostNames) + " sources of documents (meta.pile_set_name), " + in_quotes(name) +
                " among them: they must name collections of documents, not single documents");
  }
  names_.emplace_back(name);
  const auto number = static_cast<uint32_t>(names_.size());
  numbers_.emplace(name, number);
  return number;
}

ShardWriter::ShardWriter(const std::string& folder, const Tokenizer& tokenizer, int64_t max_tokens)
    : folder_(folder),
      lock_(std::in_place, folder),
      vocab_size_(tokenizer.vocab_size()),
      max_tokens_(max_tokens),
      tokenizer_hash_(tokenizer.hash()) {
  if (max_tokens < 1) throw UsageError("tokens a shard must be at least 1, got " + std::to_string(max_tokens));
  clear(folder);
}

ShardWriter::~ShardWriter() {
  if (finished_) return;
  for (int64_t number = 0; number < number_; ++number) std::remove((folder_ + "/" + shard_name(number)).c_str());
}

void ShardWriter::add_document(std::span<const int32_t> ids, std::string_view source) {
  if (ids.empty()) return;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      throw Error("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab_size_) + " tokens");
    }
  }
  if (!tokens_.empty() && static_cast<int64_t>(tokens_.size() + ids.size()) > max_tokens_) write_shard(false);
  starts_.push_back(tokens_.size());
  sources_.push_back(names_.number(source));
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
}

void ShardWriter::finish() {
  if (tokens_.empty()) throw Error(folder_ + ": nothing to write: there were no documents");
  write_shard(true);
  finished_ = true;
  lock_.reset();
}

void ShardWriter::write_shard(bool last) {
  const size_t width = vocab_size_ <= 65536 ? 2 : 4, token_bytes = padded_size(tokens_.size() * width);
  std::vector<std::byte> body(token_bytes + 8 * starts_.size()), header(72);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    width == 2 ? put(body, 2 * i, static_cast<uint16_t>(tokens_[i])) : put(body, 4 * i, tokens_[i]);
  }
  std::memcpy(body.data() + token_bytes, starts_.data(), 8 * starts_.size());
  const bool named = !names_.names().empty();
  if (named) append_sources(body, sources_, names_.names());
  std::memcpy(header.data(), "BASEDTOK", 8);
  put(header, 8, uint32_t{named ? 2u : 1u});
  put(header, 12, static_cast<uint32_t>(width));
  put(header, 16, static_cast<uint64_t>(tokens_.size()));
  put(header, 24, static_cast<uint64_t>(starts_.size()));
  put(header, 32, static_cast<uint64_t>(vocab_size_));
  put(header, 40, tokenizer_hash_);
  put(header, 48, xxh3_64(body));
  put(header, 56, static_cast<uint32_t>(number_));
  put(header, 60, static_cast<uint32_t>(last));
  put(header, 64, xxh3_64(std::span(header).first(64)));
  AtomicFile file(folder_ + "/" + shard_name(number_));
  file.write(header);
  file.write(body);
  file.commit();
  ++number_;
  tokens_.clear();
  starts_.clear();
  sources_.clear();
}

}  // namespace based
