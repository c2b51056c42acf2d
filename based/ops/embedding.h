// Rows of a table, as a language model has them at its beginning, where the same table gives the logits at its end.
#pragma once
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

struct Embedded {
  Tensor rows;   // [tokens, width]
  Tensor table;  // the table again, for its other use
};
// The rows of `table` [vocab, width] for ids int64 [tokens]. Where gradients are on and the other use takes the table that is returned,
// that one's gradient comes first, and the rows' are added to it where it lies.
Embedded tied_embedding(const Tensor& table, const Tensor& ids);

struct EmbeddedStep {
  Tensor rows;       // [rows, width], fp32 where the table is bf16 (the residual stream)
  Tensor positions;  // int64 [rows], of the tokens in their texts, from 0
};
// As a step of decoding begins, one launch on a GPU: the rows of `table` for ids int64 [rows], and positions[r] = seen[slots[r]]++: `seen`
// int64 [slots] counts the tokens of a slot's text, slots int64 [rows] are all different. A negative id, which stands for a text that is
// not drawn on, has row 0. No gradient.
EmbeddedStep embedding_step_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids);

// sum[ids[t]] += grad[t] for all tokens t: sum [vocab, width], grad [tokens, width], ids int64. What a row gets is summed in fp32 and in a
// fixed order. No gradient.
void embedding_backward_(Tensor sum, const Tensor& grad, const Tensor& ids);

}  // namespace based::ops
