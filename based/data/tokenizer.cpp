#include "based/data/tokenizer.h"

#include <algorithm>
#include <utility>

#include "based/core/hash.h"
#include "based/core/new_folder.h"
#include "based/core/text.h"
#include "based/data/bpe.h"
#include "based/data/dna.h"

namespace based {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

uint64_t hash_of(const Vocabulary& vocabulary) {
  std::string content;
  const auto number = [&content](int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) content += static_cast<char>(static_cast<uint64_t>(value) >> shift & 0xff);
  };
  number(static_cast<int64_t>(vocabulary.tokens.size()));
  for (const std::string& token : vocabulary.tokens) {
    number(static_cast<int64_t>(token.size()));
    content += token;
  }
  number(static_cast<int64_t>(vocabulary.merges.size()));
  for (const Merge& merge : vocabulary.merges) {
    for (const int32_t id : {merge.left, merge.right, merge.result}) number(id);
  }
  for (const int32_t id : vocabulary.specials) number(id);
  if (vocabulary.nfc || !vocabulary.added.empty()) {  // not counted where there are none, so that hashes of before stay the same
    number(vocabulary.nfc ? 1 : 0);
    for (const int32_t id : vocabulary.added) number(id);
  }
  return xxh3_64(std::as_bytes(std::span(content)));
}

Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  for (int b = 0; b < 256; ++b) vocabulary.tokens.emplace_back(1, static_cast<char>(b));
  vocabulary.tokens.emplace_back(kEndOfText);
  vocabulary.specials = {256};
  return vocabulary;
}

// The number of bytes, 0 to 3, at the end of `text` that may be the start of an incomplete character.
size_t unfinished_bytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto lead = static_cast<unsigned char>(text[text.size() - n]);
    if ((lead & 0xc0) == 0x80) continue;
    const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 1;
    return lead <= 0xf4 && size > n ? n : 0;
  }
  return 0;
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), specials_(vocabulary_, vocabulary_.specials), hash_(hash_of(vocabulary_)) {}

bool Tokenizer::is_special(int32_t id) const { return std::binary_search(vocabulary_.specials.begin(), vocabulary_.specials.end(), id); }

std::optional<int32_t> Tokenizer::special(std::string_view text) const {
  for (const int32_t id : vocabulary_.specials) {
    if (vocabulary_.tokens[static_cast<size_t>(id)] == text) return id;
  }
  return std::nullopt;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  if (specials == Specials::as_text) {
    encode_text(text, ids);
    return ids;
  }
  specials_.split(text, ids, [&](std::string_view rest) { encode_text(rest, ids); });
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab_size()) + " tokens");
  }
  return vocabulary_.tokens[static_cast<size_t>(id)];
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_bytes(id);
  return text;
}

void Tokenizer::save(const std::string& folder) const {
  MadeFolder made(folder);
  write_vocabulary(vocabulary_, folder);
  made.keep();
}

ByteTokenizer::ByteTokenizer() : Tokenizer(byte_vocabulary()) {}

void ByteTokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& folder_or_name) {
  auto bytes = std::make_unique<ByteTokenizer>();
  if (folder_or_name == "bytes") return bytes;
  if (folder_or_name == "dna" || holds_dna_tokenizer(folder_or_name)) return std::make_unique<DnaTokenizer>();
  auto bpe = std::make_unique<BpeTokenizer>(read_vocabulary(folder_or_name));
  if (bpe->hash() == bytes->hash()) return bytes;
  return bpe;
}

std::string IncrementalDecoder::push(int32_t id) {
  std::string text = std::move(held_);
  text += tokenizer_->token_bytes(id);
  const size_t ready = text.size() - unfinished_bytes(text);
  held_ = text.substr(ready);
  text.resize(ready);
  return text;
}

std::string IncrementalDecoder::flush() { return std::exchange(held_, std::string()); }

}  // namespace based
