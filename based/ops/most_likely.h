// The words that a language model holds for the most likely, whose logits are never all in memory.
#pragma once
#include "based/ops/operator.h"

namespace based::ops {

// For each row the word w < vocab_size with the largest logit of hidden·weightᵀ, int64 [rows]: hidden [rows, d], weight [words, d], of
// whose words those from vocab_size on are padding and never chosen. −1 where the largest logit is not finite. Nothing waits for a device.
// No gradient.
Tensor most_likely(const Tensor& hidden, const Tensor& weight, int64_t vocab_size);

// The operator.
struct MostLikely {
  const Tensor& hidden;
  const Tensor& weight;
  int64_t vocab_size;
  BASED_OPERATOR("most_likely -> words", hidden, weight, vocab_size)
};

}  // namespace based::ops
