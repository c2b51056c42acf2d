// Token shards: memory-mapped files of token ids, with checksums and the hash of the tokenizer. A folder contains one set, 00000.tokens,
// 00001.tokens, … All numbers are little-endian:
//
//   offset  0  "BASEDTOK"
//           8  u32 version (1 or 2)        12  u32 bytes per token (2 or 4)
//          16  u64 tokens                  24  u64 documents
//          32  u64 vocabulary size         40  u64 hash of the tokenizer
//          48  u64 XXH3 of all bytes after the header
//          56  u32 number of the shard, from 0     60  u32 1 for the last shard of the set, else 0
//          64  u64 XXH3 of bytes 0 .. 63
//          72  the tokens, then zeros up to a multiple of 8, then u64 position of the first token of each document
//
// Version 2 also says which source each document is from, such as meta.pile_set_name of the Pile. After the positions it has
//
//   u32 source of each document: 0 for none, else 1 + the index of its name; then zeros up to a multiple of 8
//   u64 number of names, u64 bytes of the names, then the names, each followed by a zero byte, then zeros up to a multiple of 8
//
// A shard's names are the sources of its documents and those of earlier shards, in the order of their first documents. A shard without
// names has version 1.
//
// A document is never split over shards. If the tokenizer has <|endoftext|>, every document ends with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/data/tokenizer.h"

namespace based {

enum class ShardCheck { whole, header };  // `whole` also reads all tokens and checks the checksum and their range

struct TokenShard {
  int64_t tokens = 0, documents = 0, vocab_size = 0;
  uint64_t tokenizer_hash = 0, checksum = 0;
  int token_bytes = 2;
  uint32_t number = 0;
  bool last = false;
  const std::byte* token_data = nullptr;       // [tokens]
  const std::byte* document_data = nullptr;    // [documents]
  const std::byte* source_data = nullptr;      // [documents]; null if the shard has no names
  std::vector<std::string_view> source_names;  // views into the file
  uint64_t names_offset = 0;                   // in the file

  int64_t document_start(int64_t document) const;
  int64_t document_source(int64_t document) const;         // an index of source_names; -1: none
  void copy(int64_t first, std::span<int32_t> out) const;  // tokens first .. first + out.size() - 1
};

// A view of `file`, which may have any content. Throws Error as "<source>: byte 16: <reason>" if it is not a valid shard.
TokenShard parse_shard(std::span<const std::byte> file, const std::string& source, ShardCheck check);

// The names of sources, numbered in the order of their first documents.
class SourceNames {
 public:
  uint32_t number(std::string_view name);  // 0 for "", else 1 + its index in names(); throws Error at the 65,536th name
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::map<std::string, uint32_t, std::less<>> numbers_;
};

// Writes a set of shards. The folder is created if needed and must not contain a set. It is locked until finish() or destruction. Without
// finish(), the destructor removes the shards. A killed process leaves a set without a last shard: such a set is rejected when it is
// opened, and removed by the next writer.
class ShardWriter {
 public:
  static constexpr int64_t kTokens = int64_t{1} << 25;
  // A shard has at most `max_tokens` tokens, unless one document is longer.
  ShardWriter(const std::string& folder, const Tokenizer& tokenizer, int64_t max_tokens = kTokens);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Does not append <|endoftext|>. `source` has no zero byte; "": none. Throws Error for ids outside the vocabulary.
  void add_document(std::span<const int32_t> ids, std::string_view source = {});
  void finish();  // throws Error if there were no documents

  int64_t shards() const { return number_; }  // shards written so far
  int64_t sources() const { return static_cast<int64_t>(names_.names().size()); }

 private:
  void write_shard(bool last);

  std::string folder_;
  std::optional<FolderLock> lock_;  // held until the set is complete
  int64_t vocab_size_, max_tokens_, number_ = 0;
  uint64_t tokenizer_hash_;
  bool finished_ = false;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> starts_;
  std::vector<uint32_t> sources_;
  SourceNames names_;
};

// The sources of the documents of a set in memory, numbered as in a shard.
struct DocumentSources {
  std::vector<uint32_t> numbers;  // [documents], or empty if no document has a source
  std::vector<std::string> names;
};

// A set of shards as one sequence of tokens.
class TokenDataset {
 public:
  // `path` is a folder of shards, or the only file of a set. Throws Error if a shard is missing, incomplete or of another tokenizer.
  explicit TokenDataset(const std::string& path, ShardCheck check = ShardCheck::whole);
  // A set in memory: `starts` are the positions of the documents' first tokens, ascending from 0. `name` is used in messages. The hash does
  // not cover the sources.
  TokenDataset(std::string name, std::vector<int32_t> tokens, std::vector<uint64_t> starts, const Tokenizer& tokenizer,
               DocumentSources sources = {});
  TokenDataset(const TokenDataset&) = delete;
  TokenDataset& operator=(const TokenDataset&) = delete;

  const std::string& path() const { return path_; }  // or the name of a set in memory
  int64_t tokens() const { return first_token_.back(); }
  int64_t documents() const { return first_document_.back(); }
  int64_t vocab_size() const { return shards_.front().vocab_size; }
  uint64_t tokenizer_hash() const { return shards_.front().tokenizer_hash; }
  uint64_t hash() const { return hash_; }  // covers the complete content; stored in checkpoints

  void require_tokenizer(const Tokenizer& tokenizer) const;  // throws Error if another tokenizer encoded the set
  void copy(int64_t first, std::span<int32_t> out) const;    // tokens first .. first + out.size() - 1
  // Appends the positions p of documents' first tokens with first <= p < last.
  void append_document_starts(int64_t first, int64_t last, std::vector<int64_t>& out) const;
  int64_t count_document_starts(int64_t first, int64_t last) const;  // the number of these positions

  int64_t document_at(int64_t token) const;  // the document that a token belongs to
  int64_t document_start(int64_t document) const;

  // Where the documents are from, such as meta.pile_set_name of the Pile: an index of source_names(), or -1 for none.
  const std::vector<std::string>& source_names() const { return source_names_; }  // in the order of their first documents
  int64_t document_source(int64_t document) const;
  int64_t source_at(int64_t token) const { return document_source(document_at(token)); }
  struct SourceSize {
    int64_t documents = 0, tokens = 0;
  };
  std::vector<SourceSize> source_sizes() const;  // one for each name, then one for the documents without a source; reads all starts

 private:
  size_t shard_of_document(int64_t document) const;

  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<int32_t> memory_tokens_;  // for a set in memory
  std::vector<uint64_t> memory_starts_;
  std::vector<uint32_t> memory_sources_;
  std::vector<TokenShard> shards_;
  std::vector<int64_t> first_token_;     // the position of each shard's first token, and the end
  std::vector<int64_t> first_document_;  // the number of each shard's first document, and the end
  std::vector<std::string> source_names_;
  uint64_t hash_ = 0;
};

struct PackSettings {
  int64_t shard_tokens = ShardWriter::kTokens;
  int64_t threads = 1;                  // that parse and encode; the set does not depend on their number
  std::optional<int64_t> shuffle_seed;  // shuffles the documents; none: they keep the order of the files
  bool quiet = true;                    // no progress line
};

struct PackReport {
  int64_t documents = 0, empty = 0, tokens = 0, bytes = 0, shards = 0;  // empty documents are left out
  int64_t sources = 0;                                                  // names of sources
  bool end_of_text = false;                                             // whether the tokenizer has <|endoftext|> to end each document
};

// Encodes all documents of the files into a set in `folder`. Memory is bounded by a few dozen MiB, a shard and the longest documents; a
// shuffle also writes all tokens to temporary files in the folder. If it fails, or a signal (interrupt.h) asks to stop, it throws Error and
// leaves nothing there.
PackReport pack_files(const std::vector<std::string>& files, const std::string& format, const Tokenizer& tokenizer,
                      const std::string& folder, const PackSettings& settings = {});

}  // namespace based
