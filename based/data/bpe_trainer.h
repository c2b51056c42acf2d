// Learns a byte-level BPE vocabulary from text, with the choices and ties of the Python `tokenizers` library, so that both give the same
// files: text is counted a line at a time (so that no token reaches over a line's end), the most frequent pair is merged, and of equally
// frequent pairs the one with the smaller ids.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "based/data/vocabulary.h"

namespace based {

struct BpeTrainConfig {
  int64_t vocab_size = 32768;  // special tokens and the 256 bytes included; fewer come out where no pair is frequent enough
  int64_t min_frequency = 2;   // pairs seen less often are not merged
  // Take the first ids, in this order. No pair is merged into a token that is written in the files as one of them: two tokens cannot have
  // one name.
  std::vector<std::string> specials;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("vocab_size", vocab_size, "tokens, special ones and the 256 bytes included");
    field("min_frequency", min_frequency, "pairs seen less often are not merged");
    field("specials", specials, "special tokens; they take the first ids");
  }
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainConfig config);  // throws UsageError for a vocabulary too small for the bytes, or bad special tokens

  // Counts the pre-tokens of one document; may be called any number of times.
  void add(std::string_view text);

  // The same vocabulary for the same counts, in whatever order they were added.
  Vocabulary train() const;

 private:
  BpeTrainConfig config_;
  std::unordered_map<std::string, int64_t> counts_;  // of pre-tokens
};

}  // namespace based
