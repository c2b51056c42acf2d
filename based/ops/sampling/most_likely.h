// The most likely word of each row. The logits of all rows are never in memory.
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

// For each row the word w < vocab_size with the largest logit of hidden·weightᵀ, int64 [rows]: hidden [rows, d], weight [words, d].
// Words from vocab_size on are padding and never chosen. −1 where the largest logit is not finite. The host does not wait for a device. No
// gradient.
Tensor most_likely(const Tensor& hidden, const Tensor& weight, int64_t vocab_size);

// The operator.
struct MostLikely {
  const Tensor& hidden;
  const Tensor& weight;
  int64_t vocab_size;
  BASED_OPERATOR("most_likely -> words", hidden, weight, vocab_size)
};

}  // namespace based::ops
