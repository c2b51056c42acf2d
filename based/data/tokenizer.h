// Conversion of text to token ids and back. Any bytes can be encoded, valid UTF-8 or not, and decode() returns exactly these bytes, with
// two exceptions: the tokenizer of DNA (dna.h) maps several characters to one id, and a vocabulary may ask for text in form C
// (Vocabulary::nfc).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/data/token_finder.h"
#include "based/data/vocabulary.h"

namespace based {

// How encode() treats text that spells a special token, such as <|endoftext|>. Untrusted text must be encoded `as_text`, or it could inject
// special tokens.
enum class Specials { as_text, recognised };

// Immutable and thread-safe.
class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary);
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<int32_t> encode(std::string_view text, Specials specials = Specials::as_text) const;
  // Appends the ids of `text`, without recognising special tokens.
  virtual void encode_text(std::string_view text, std::vector<int32_t>& ids) const = 0;

  // Both decode special tokens to their text, and throw Error for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;
  std::string_view token_bytes(int32_t id) const;

  int64_t vocab_size() const { return static_cast<int64_t>(vocabulary_.tokens.size()); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool is_special(int32_t id) const;
  std::optional<int32_t> special(std::string_view text) const;  // the id of a special token, by its text
  // The token that ends documents.
  virtual std::optional<int32_t> end_of_text() const { return special("<|endoftext|>"); }

  // Equal for two tokenizers if and only if they give the same ids for every text. Stored in token shards and checkpoints.
  uint64_t hash() const { return hash_; }

  // Writes files that make_tokenizer and the Python `tokenizers` library can read. Creates the folder if needed.
  virtual void save(const std::string& folder) const;

 private:
  Vocabulary vocabulary_;
  TokenFinder specials_;
  uint64_t hash_ = 0;
};

// Id = byte, 0 .. 255, and <|endoftext|> = 256.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer();
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override;
};

// From "bytes", "dna", or a folder with tokenizer.json, or with vocab.json and merges.txt. Throws the errors of read_vocabulary.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& folder_or_name);

// Decodes tokens as they are generated. Returns only whole UTF-8 characters: the first bytes of an incomplete character are held back. The
// concatenated pieces equal decode(ids), including bytes that are not part of any character. Keeps a pointer to the tokenizer.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(int32_t id);  // the new complete characters; may be empty
  std::string flush();           // at the end, the bytes that are still held back

 private:
  const Tokenizer* tokenizer_;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace based
