#include "based/data/shards.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "based/core/hash.h"
#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are, and they are little-endian");

constexpr size_t kHeaderBytes = 72;

template <class T>
T read_at(const std::byte* data, uint64_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

[[noreturn]] void refuse(const std::string& source, uint64_t offset, const std::string& what) {
  throw Error(source + ": byte " + std::to_string(offset) + ": " + what);
}

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

void check_documents(const TokenShard& shard, const std::string& source, uint64_t offset) {
  for (int64_t i = 0; i < shard.documents; ++i) {
    const auto start = read_at<uint64_t>(shard.document_data, static_cast<uint64_t>(i));
    const uint64_t least = i == 0 ? 0 : static_cast<uint64_t>(shard.document_start(i - 1)) + 1;
    const uint64_t most = i == 0 ? 0 : static_cast<uint64_t>(shard.tokens) - 1;
    if (start < least || start > most) {
      refuse(source, offset + 8 * static_cast<uint64_t>(i),
             "document " + std::to_string(i) + " starts at token " + std::to_string(start) +
                 "; documents must start at 0, ascend and hold a token each");
    }
  }
}

template <class T>
void check_ids(const TokenShard& shard, const std::string& source) {
  for (uint64_t i = 0; i < static_cast<uint64_t>(shard.tokens); ++i) {
    const T id = read_at<T>(shard.token_data, i);
    if (id >= static_cast<uint64_t>(shard.vocab_size)) {
      refuse(source, kHeaderBytes + i * sizeof(T),
             "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(shard.vocab_size) + " tokens");
    }
  }
}

struct NameSection {
  uint64_t offset, count, bytes;  // offset in the file of the count
};

// Finds the names of a shard whose documents' sources start at `sources_at`, and checks that the section is inside the file.
NameSection find_names(std::span<const std::byte> file, uint64_t documents, uint64_t sources_at, const std::string& source) {
  NameSection names{sources_at + padded(4 * documents), 0, 0};
  if (file.size() < names.offset + 16) {
    refuse(source, file.size(),
           "cut off: " + std::to_string(file.size()) + " bytes, should be more than " + std::to_string(names.offset + 16));
  }
  names.count = read_at<uint64_t>(file.data() + names.offset, 0);
  names.bytes = read_at<uint64_t>(file.data() + names.offset, 1);
  if (names.bytes > file.size())
    refuse(source, names.offset + 8,
           std::to_string(names.bytes) + " bytes of names do not fit a file of " + std::to_string(file.size()) + " bytes");
  if (names.count < 1 || names.count > names.bytes / 2)
    refuse(source, names.offset, std::to_string(names.count) + " names of sources in " + std::to_string(names.bytes) + " bytes");
  return names;
}

void read_names(std::span<const std::byte> file, const NameSection& section, const std::string& source, TokenShard& shard) {
  const uint64_t first = section.offset + 16, end = first + section.bytes;
  const auto* text = reinterpret_cast<const char*>(file.data());
  std::set<std::string_view> seen;
  for (uint64_t at = first; at < end;) {
    const std::string_view rest(text + at, static_cast<size_t>(end - at));
    const size_t stop = rest.find('\0');
    if (stop == std::string_view::npos) refuse(source, end - 1, "must be 0: it ends the last name");
    const std::string_view name = rest.substr(0, stop);
    if (name.empty() || !is_valid_utf8(name) || !seen.insert(name).second)
      refuse(source, at, "the name of a source must be UTF-8, not be empty and not occur twice, is " + in_quotes(name));
    shard.source_names.push_back(name);
    at += stop + 1;
  }
  if (shard.source_names.size() != section.count) {
    refuse(source, section.offset,
           std::to_string(section.count) + " names of sources, but there are " + std::to_string(shard.source_names.size()));
  }
  for (uint64_t at = end; at < file.size(); ++at) {
    if (file[at] != std::byte{0}) refuse(source, at, "must be 0: it fills up after the names");
  }
}

void read_sources(std::span<const std::byte> file, uint64_t sources_at, const NameSection& section, const std::string& source,
                  TokenShard& shard) {
  shard.source_data = file.data() + sources_at;
  shard.names_offset = section.offset;
  read_names(file, section, source, shard);
  for (int64_t i = 0; i < shard.documents; ++i) {
    const auto number = read_at<uint32_t>(shard.source_data, static_cast<uint64_t>(i));
    if (number > section.count) {
      refuse(source, sources_at + 4 * static_cast<uint64_t>(i),
             "document " + std::to_string(i) + " is of source " + std::to_string(number) + "; there are " + std::to_string(section.count));
    }
  }
  for (uint64_t at = sources_at + 4 * static_cast<uint64_t>(shard.documents); at < section.offset; ++at) {
    if (file[at] != std::byte{0}) refuse(source, at, "must be 0: it fills up after the sources");
  }
}

}  // namespace

int64_t TokenShard::document_source(int64_t document) const {
  return source_data == nullptr ? -1 : int64_t{read_at<uint32_t>(source_data, static_cast<uint64_t>(document))} - 1;
}

int64_t TokenShard::document_start(int64_t document) const {
  return static_cast<int64_t>(read_at<uint64_t>(document_data, static_cast<uint64_t>(document)));
}

void TokenShard::copy(int64_t first, std::span<int32_t> out) const {
  BASED_ASSERT(first >= 0 && first <= tokens && static_cast<int64_t>(out.size()) <= tokens - first);
  if (token_bytes == 4) {
    std::memcpy(out.data(), token_data + 4 * first, 4 * out.size());
  } else {
    for (size_t i = 0; i < out.size(); ++i) out[i] = read_at<uint16_t>(token_data, static_cast<uint64_t>(first) + i);
  }
}

TokenShard parse_shard(std::span<const std::byte> file, const std::string& source, ShardCheck check) {
  if (file.size() < 8 || std::memcmp(file.data(), "BASEDTOK", 8) != 0)
    refuse(source, 0, "no token shard: it does not start with 'BASEDTOK'");
  if (file.size() < kHeaderBytes) refuse(source, file.size(), "cut off inside the header of 72 bytes");
  const std::byte* data = file.data();
  const auto number32 = [data](size_t offset) { return read_at<uint32_t>(data + offset, 0); };
  const auto number64 = [data](size_t offset) { return read_at<uint64_t>(data + offset, 0); };
  const uint32_t version = number32(8);
  if (version != 1 && version != 2) refuse(source, 8, "version " + std::to_string(version) + " is not known, only 1 and 2");
  if (number64(64) != xxh3_64(file.first(64))) refuse(source, 64, "the header is damaged: its checksum does not fit");
  const uint32_t width = number32(12);
  const uint64_t tokens = number64(16), documents = number64(24), vocab_size = number64(32);
  if (width != 2 && width != 4) refuse(source, 12, std::to_string(width) + " bytes a token; must be 2 or 4");
  if (vocab_size < 1 || vocab_size > INT32_MAX) refuse(source, 32, "a vocabulary of " + std::to_string(vocab_size) + " tokens");
  if (number32(60) > 1) refuse(source, 60, "must be 0 or 1 (last shard), is " + std::to_string(number32(60)));
  const uint64_t most = file.size();  // bounds the counts, so that the arithmetic below does not overflow
  if (tokens < 1 || tokens > most)
    refuse(source, 16, std::to_string(tokens) + " tokens do not fit a file of " + std::to_string(most) + " bytes");
  if (documents < 1 || documents > tokens)
    refuse(source, 24, std::to_string(documents) + " documents of " + std::to_string(tokens) + " tokens");
  const uint64_t documents_at = kHeaderBytes + padded(tokens * width), sources_at = documents_at + 8 * documents;
  const NameSection names = version == 1 ? NameSection{} : find_names(file, documents, sources_at, source);
  const uint64_t size = version == 1 ? sources_at : names.offset + 16 + padded(names.bytes);
  if (size != most) {
    refuse(source, std::min(size, most),
           (most < size ? "cut off: " : "bytes left over: ") + std::to_string(most) + " bytes, should be " + std::to_string(size));
  }
  TokenShard shard;
  shard.tokens = static_cast<int64_t>(tokens);
  shard.documents = static_cast<int64_t>(documents);
  shard.vocab_size = static_cast<int64_t>(vocab_size);
  shard.tokenizer_hash = number64(40);
  shard.checksum = number64(48);
  shard.token_bytes = static_cast<int>(width);
  shard.number = number32(56);
  shard.last = number32(60) == 1;
  shard.token_data = data + kHeaderBytes;
  shard.document_data = data + documents_at;
  for (uint64_t at = kHeaderBytes + tokens * width; at < documents_at; ++at) {
    if (data[at] != std::byte{0}) refuse(source, at, "must be 0: it fills up after the tokens");
  }
  check_documents(shard, source, documents_at);
  if (version == 2) read_sources(file, sources_at, names, source, shard);
  if (check == ShardCheck::header) return shard;
  if (shard.checksum != xxh3_64(file.subspan(kHeaderBytes))) refuse(source, 48, "the tokens are damaged: their checksum does not fit");
  width == 2 ? check_ids<uint16_t>(shard, source) : check_ids<uint32_t>(shard, source);
  return shard;
}

}  // namespace based
