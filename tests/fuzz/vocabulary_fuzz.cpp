// Tokenizer files: an accepted tokenizer decodes the ids of any bytes to the same bytes. A zero byte separates vocab.json from
// merges.txt; without one the input is a tokenizer.json.
#include "based/data/bpe.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

void check(Vocabulary vocabulary, std::string_view text) {
  const BpeTokenizer tokenizer(std::move(vocabulary));
  require(tokenizer.decode(tokenizer.encode(text)) == text, "decode(encode(text)) == text");
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  const size_t end = text.find('\0');
  if (end == std::string_view::npos) {
    accept_or_refuse([&] { check(parse_tokenizer_json(text, "fuzz/tokenizer.json"), text); });
  } else {
    accept_or_refuse(
        [&] { check(parse_vocab_and_merges(text.substr(0, end), "fuzz/vocab.json", text.substr(end + 1), "fuzz/merges.txt"), text); });
  }
}

}  // namespace based
