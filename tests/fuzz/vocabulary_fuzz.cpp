// Tokenizer files: read or refused. The first zero byte parts vocab.json from merges.txt.
#include "based/data/vocabulary.h"
#include "tests/fuzz/fuzz.h"

namespace based {

void fuzz_one(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  accept_or_refuse([&] { parse_tokenizer_json(text, "fuzz/tokenizer.json"); });
  const size_t end = std::min(text.find('\0'), text.size());
  const std::string_view merges = end < text.size() ? text.substr(end + 1) : std::string_view();
  accept_or_refuse([&] { parse_vocab_and_merges(text.substr(0, end), "fuzz/vocab.json", merges, "fuzz/merges.txt"); });
}

}  // namespace based
