// Tokenizer files: read or refused, and what is read encodes any bytes so that they come back. The first zero byte parts vocab.json from
// merges.txt.
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
  accept_or_refuse([&] { check(parse_tokenizer_json(text, "fuzz/tokenizer.json"), text); });
  const size_t end = std::min(text.find('\0'), text.size());
  const std::string_view merges = end < text.size() ? text.substr(end + 1) : std::string_view();
  accept_or_refuse([&] { check(parse_vocab_and_merges(text.substr(0, end), "fuzz/vocab.json", merges, "fuzz/merges.txt"), text); });
}

}  // namespace based
