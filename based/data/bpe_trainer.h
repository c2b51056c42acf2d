// Trains a byte-level BPE vocabulary. It makes the same choices as the Python `tokenizers` library, so that both give the same files: text
// is processed line by line, so that no token spans a line break; the most frequent pair is merged; ties go to the pair with the smaller
// ids.
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
  int64_t vocab_size = 32768;         // special tokens and the 256 bytes included; the result is smaller if no pair is frequent enough
  int64_t min_frequency = 2;          // less frequent pairs are not merged
  std::vector<std::string> specials;  // get the first ids, in this order; no other token gets the same name

  template <class Visitor>
  void visit(Visitor&& field) {
    field("vocab_size", vocab_size, "tokens, special ones and the 256 bytes included");
    field("min_frequency", min_frequency, "less frequent pairs are not merged");
    field("specials", specials, "special tokens; they get the first ids");
  }
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainConfig config);  // throws UsageError for a vocabulary too small for the bytes, or invalid special tokens

  // Counts the pre-tokens of one document. May be called any number of times.
  void add(std::string_view text);

  // Computes the vocabulary, which does not depend on the order of add().
  Vocabulary train() const;

 private:
  BpeTrainConfig config_;
  std::unordered_set<std::string> special_names_;
  std::unordered_map<std::string, int64_t> counts_;  // the number of each pre-token
};

}  // namespace based
