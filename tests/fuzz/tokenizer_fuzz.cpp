// Byte-level BPE: any bytes, valid UTF-8 or not, come back from their ids unchanged, or in form C where the vocabulary asks for it, and
// text forges no special token.
#include <algorithm>

#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "based/data/nfc.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

BpeTokenizer make_bpe() {
  BpeTrainer trainer({.vocab_size = 300, .min_frequency = 1, .specials = {"<|endoftext|>", "<|"}});
  trainer.add("the cat and the rat  sat\nthere's naïve café don't 12345 \t\n  ?!");
  return BpeTokenizer(trainer.train());
}

// The same in the form of GPT-NeoX-20b's tokenizer.
BpeTokenizer make_normalizing() {
  Vocabulary vocabulary = make_bpe().vocabulary();
  for (const char* spaces : {"    ", "   ", "  "}) {
    vocabulary.added.push_back(static_cast<int32_t>(vocabulary.tokens.size()));
    vocabulary.tokens.emplace_back(spaces);
  }
  vocabulary.nfc = true;
  return BpeTokenizer(std::move(vocabulary));
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  static const BpeTokenizer tokenizer = make_bpe();
  const std::string_view text = as_text(input);
  const std::vector<int32_t> ids = tokenizer.encode(text);
  require(tokenizer.decode(ids) == text, "decode(encode(text)) == text");
  require(std::none_of(ids.begin(), ids.end(), [](int32_t id) { return tokenizer.is_special(id); }), "text made a special token");
  require(tokenizer.decode(tokenizer.encode(text, Specials::recognised)) == text, "the same where special tokens are recognised");

  static const BpeTokenizer normalizing = make_normalizing();
  const std::string normalized = to_nfc(text);
  require(to_nfc(normalized) == normalized, "form C of form C");
  require(!is_nfc_at_sight(text) || normalized == text, "form C of characters below U+0300");
  require(normalizing.decode(normalizing.encode(text)) == normalized, "decode(encode(text)) is text in form C");
}

}  // namespace based
