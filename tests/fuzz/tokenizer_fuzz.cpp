// Byte-level BPE: any bytes, valid UTF-8 or not, come back from their ids unchanged, and text forges no special token.
#include <algorithm>

#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

BpeTokenizer make_bpe() {
  BpeTrainer trainer({.vocab_size = 300, .min_frequency = 1, .specials = {"<|endoftext|>", "<|"}});
  trainer.add("the cat and the rat  sat\nthere's naïve café don't 12345 \t\n  ?!");
  return BpeTokenizer(trainer.train());
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  static const BpeTokenizer tokenizer = make_bpe();
  const std::string_view text = as_text(input);
  const std::vector<int32_t> ids = tokenizer.encode(text);
  require(tokenizer.decode(ids) == text, "decode(encode(text)) == text");
  require(std::none_of(ids.begin(), ids.end(), [](int32_t id) { return tokenizer.is_special(id); }), "text made a special token");
  require(tokenizer.decode(tokenizer.encode(text, Specials::recognised)) == text, "the same where special tokens are recognised");
}

}  // namespace based
