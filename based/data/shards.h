// Token shards: token ids on disk, memory-mapped, with what is needed to refuse the wrong ones. A folder holds one set, 00000.tokens and
// on. All numbers are little-endian:
//
//   offset  0  "BASEDTOK"
//           8  u32 version (1)             12  u32 bytes a token (2 or 4)
//          16  u64 tokens                  24  u64 documents
//          32  u64 vocabulary size         40  u64 hash of the tokenizer
//          48  u64 XXH3 of all behind the header
//          56  u32 number of the shard, from 0     60  u32 1 for the last shard of the set, else 0
//          64  u64 XXH3 of bytes 0 .. 63
//          72  the tokens, then zeros up to a multiple of 8, then u64 position of the first token of each document
//
// A document is never split over shards. Where the tokenizer has <|endoftext|>, every document ends with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/data/tokenizer.h"

namespace based {

enum class ShardCheck { whole, header };  // `whole` also reads every token once: checksum and range

struct TokenShard {
  int64_t tokens = 0, documents = 0, vocab_size = 0;
  uint64_t tokenizer_hash = 0, checksum = 0;
  int token_bytes = 2;
  uint32_t number = 0;
  bool last = false;
  const std::byte* token_data = nullptr;     // [tokens]
  const std::byte* document_data = nullptr;  // [documents]

  int64_t document_start(int64_t document) const;
  void copy(int64_t first, std::span<int32_t> out) const;  // tokens first .. first + out.size() - 1
};

// A view of `file`. Throws Error as "<source>: byte 16: what is wrong", whatever the bytes are.
TokenShard parse_shard(std::span<const std::byte> file, const std::string& source, ShardCheck check);

// Writes a set. The folder is made where needed, must hold no set, and is locked until the set is whole or given up. A writer that goes
// before finish() takes its shards with it; what a killed process leaves behind, shards without a last one, is refused when it is opened,
// and removed by the next writer.
class ShardWriter {
 public:
  static constexpr int64_t kTokens = int64_t{1} << 25;
  // `max_tokens` a shard; a longer document makes a longer shard.
  ShardWriter(const std::string& folder, const Tokenizer& tokenizer, int64_t max_tokens = kTokens);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void add_document(std::span<const int32_t> ids);  // nothing is appended; throws Error for ids outside the vocabulary
  void finish();                                    // throws Error where there were no documents

  int64_t shards() const { return number_; }  // written

 private:
  void write_shard(bool last);

  std::string folder_;
  std::optional<FolderLock> lock_;  // until the set is whole
  int64_t vocab_size_, max_tokens_, number_ = 0;
  uint64_t tokenizer_hash_;
  bool finished_ = false;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> starts_;
};

// A whole set as one row of tokens.
class TokenDataset {
 public:
  // A folder of shards, or the one file of a set of one. Throws Error where a shard is missing, unfinished or of another tokenizer.
  explicit TokenDataset(const std::string& path, ShardCheck check = ShardCheck::whole);
  // A set in memory: `starts` are the positions of the documents' first tokens, ascending from 0; `name` is for messages.
  TokenDataset(std::string name, std::vector<int32_t> tokens, std::vector<uint64_t> starts, const Tokenizer& tokenizer);
  TokenDataset(const TokenDataset&) = delete;
  TokenDataset& operator=(const TokenDataset&) = delete;

  int64_t tokens() const { return first_token_.back(); }
  int64_t documents() const { return documents_; }
  int64_t vocab_size() const { return shards_.front().vocab_size; }
  uint64_t tokenizer_hash() const { return shards_.front().tokenizer_hash; }
  uint64_t hash() const { return hash_; }  // of all content; kept in checkpoints

  void require_tokenizer(const Tokenizer& tokenizer) const;  // throws Error where the set was made with another one
  void copy(int64_t first, std::span<int32_t> out) const;    // tokens first .. first + out.size() - 1
  // Appends the positions p of documents' first tokens with first <= p < last.
  void append_document_starts(int64_t first, int64_t last, std::vector<int64_t>& out) const;

 private:
  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<int32_t> memory_tokens_;  // of a set in memory
  std::vector<uint64_t> memory_starts_;
  std::vector<TokenShard> shards_;
  std::vector<int64_t> first_token_;  // of each shard, and the end
  int64_t documents_ = 0;
  uint64_t hash_ = 0;
};

// Encodes all documents of the files into a set in `folder`, or leaves nothing there: also where a signal (interrupt.h) asks to stop, which
// is an Error too.
struct PackReport {
  int64_t documents = 0, empty = 0, tokens = 0, bytes = 0, shards = 0;  // empty documents are left out
  bool end_of_text = false;                                             // whether the tokenizer has one to put behind each document
};
PackReport pack_files(const std::vector<std::string>& files, const std::string& format, const Tokenizer& tokenizer,
                      const std::string& folder, int64_t shard_tokens = ShardWriter::kTokens);

}  // namespace based
