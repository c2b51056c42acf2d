// Text to token ids and back. Any bytes may be encoded, valid UTF-8 or not, and decode gives exactly them back.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/data/vocabulary.h"

namespace based {

// What to do where the text spells a special token, such as <|endoftext|>. Text from outside must be `as_text`, or it can forge one.
enum class Specials { as_text, recognised };

// Immutable and safe to use from several threads at once.
class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary);
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<int32_t> encode(std::string_view text, Specials specials = Specials::as_text) const;
  // Appends the ids of `text`, in which nothing is special.
  virtual void encode_text(std::string_view text, std::vector<int32_t>& ids) const = 0;

  // Special tokens come out as their text. Throws Error for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;
  std::string_view token_bytes(int32_t id) const;  // likewise

  int64_t vocab_size() const { return static_cast<int64_t>(vocabulary_.tokens.size()); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool is_special(int32_t id) const;
  std::optional<int32_t> special(std::string_view text) const;  // the id of a special token, by its text
  std::optional<int32_t> end_of_text() const { return special("<|endoftext|>"); }

  // The same for two tokenizers exactly if they give the same ids for every text; kept in token shards and checkpoints.
  uint64_t hash() const { return hash_; }

  // Makes the folder where needed and writes what make_tokenizer (and the Python `tokenizers` library) reads.
  void save(const std::string& folder) const;

 private:
  Vocabulary vocabulary_;
  uint64_t hash_ = 0;
};

// Id = byte, 0 .. 255, and <|endoftext|> = 256.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer();
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override;
};

// "bytes", or a folder with tokenizer.json, or with vocab.json and merges.txt; see read_vocabulary for what is refused.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& folder_or_bytes);

// Text of tokens as they are generated: gives out whole UTF-8 characters only, and holds back the first bytes of one that is not yet
// complete. All pieces together are decode(ids), bytes that can be no character included. Keeps a pointer to the tokenizer.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(int32_t id);  // what is certain now; may be empty
  std::string flush();           // what is still held back, at the end

 private:
  const Tokenizer* tokenizer_;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace based
