// The most likely tokens of rows of logits, compared with a given token of each row.
#pragma once
#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

struct TopTokens {
  Tensor ids;      // int64 [rows, k], the most likely first; equal ones in any order
  Tensor margins;  // [rows, k]: the logit of the token minus that of the row's given token; exactly 0 for that token
};
// logits [rows, vocab], floating; tokens int64 [rows], the given token of each row; 1 ≤ k ≤ vocab. The margins are fp32, or fp64 for double
// logits. log p(token) of the given token, plus the margin, is the log-probability of the other token. No gradient.
TopTokens top_tokens(const Tensor& logits, const Tensor& tokens, int64_t k);

}  // namespace based::ops
