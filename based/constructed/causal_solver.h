// Recall solved exactly by weights that nobody trained: a causal model of base_conv layers alone (paper, appendix "Upperbound on MQAR",
// whose own program is not causal). Three layers:
//   1  the outer product of the token before, if a key, with the present token, if a value's code: conv by one token, gate by the code
//   2  the sum of all products so far, read by the present token, if a key: the long filter of ones, gate by the key
//   3  the sum over keys moved to the code's channels, which the tied output projection compares with each value's code
#pragma once
#include <cstdint>
#include <memory>

#include "based/models/language_model.h"

namespace based {

// Channels: a key's one-hot row [keys], a value's code [code], their products [keys · code]. Vocabulary as in data/mqar.h: token 0 the
// filler, keys 1 … V/2 − 1, values V/2 … V − 1. A code is the value's bits and their complements, so that all have as many ones.
struct CausalSolver {
  int64_t vocab_size = 64, length = 256;

  int64_t keys() const { return vocab_size / 2 - 1; }
  int64_t values() const { return vocab_size - vocab_size / 2; }
  int64_t code() const;  // 2 ⌈log₂ values⌉, at least 2
  int64_t width() const { return keys() + code() + keys() * code(); }

  // Throws UsageError where vocab_size is not an even number from 4 to 1024, or length not 2 to 2^20.
  void check() const;
  ModelConfig config() const;
  // Answers every query exactly whose key stood directly before one value only, in texts of up to `length` tokens.
  std::shared_ptr<LanguageModel> build() const;
};

}  // namespace based
