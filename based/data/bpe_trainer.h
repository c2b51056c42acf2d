// Learns a byte-level BPE vocabulary from text, with the choices and ties of the Python `tokenizers` library, so that both give the same
// files: text is counted a line at a time (so that no token reaches over a line's end), the most frequent pair is merged, and of equally
// frequent pairs the one with the smaller ids.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "based/data/vocabulary.h"

namespace based {

struct BpeTrainConfig {
  int64_t vocab_size = 32768;         // special tokens and the 256 bytes included; fewer come out where no pair is frequent enough
  int64_t min_frequency = 2;          // pairs seen less often are not merged
  std::vector<std::string> specials;  // take the first ids, in this order; a token of the same name is not learnt

  template <class Visitor>
  void visit(Visitor&& field) {
    field("vocab_size", vocab_size, "tokens, special ones and the 256 bytes included");
    field("min_frequency", min_frequency, "pairs seen less often are not merged");
    field("specials", specials, "special tokens; they take the first ids");
  }
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainConfig config);  // UsageError for a vocabulary that cannot hold the bytes, or bad special tokens

  // Counts the pre-tokens of one document; may be called any number of times.
  void add(std::string_view text);

  // The same vocabulary for the same counts, in whatever order they were added.
  Vocabulary train() const;

 private:
  BpeTrainConfig config_;
  std::unordered_set<std::string> special_names_;
  std::unordered_map<std::string, int64_t> counts_;  // of pre-tokens
};

}  // namespace based
