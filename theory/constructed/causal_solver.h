// A model that solves recall exactly with constructed instead of trained weights: a causal model of base_conv layers (paper, appendix
// "Upperbound on MQAR", whose own program is not causal). It has three layers:
//   1  the outer product of the previous token, if it is a key, with the code of the current token, if it is a value: the convolution
//   shifts
//      by one token, the gate is the code
//   2  the sum of all products so far, selected by the current token, if it is a key: the long filter is all ones, the gate is the key
//   3  the sum over keys, moved to the code's channels, which the tied output projection compares with each value's code
#pragma once
#include <cstdint>
#include <memory>

#include "based/models/language_model.h"

namespace based {

// Channels: a key's one-hot encoding [keys], a value's code [code], and their products [keys · code]. The vocabulary is that of
// data/mqar.h: token 0 is the filler, keys are 1 … V/2 − 1, values V/2 … V − 1. A code consists of the value's bits and their complements,
// so that all codes have the same number of ones.
struct CausalSolver {
  int64_t vocab_size = 64, length = 256;

  int64_t keys() const { return vocab_size / 2 - 1; }
  int64_t values() const { return vocab_size - vocab_size / 2; }
  int64_t code() const;  // 2 ⌈log₂ values⌉, at least 2
  int64_t width() const { return keys() + code() + keys() * code(); }

  // Throws UsageError unless vocab_size is an even number from 4 to 1024 and length is from 2 to 2^20.
  void check() const;
  ModelConfig config() const;
  // A model that answers every query whose key was directly followed by only one value, in sequences of up to `length` tokens.
  std::shared_ptr<LanguageModel> build() const;
};

}  // namespace based
