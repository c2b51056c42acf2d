// Rows of an embedding table, the input of a language model. The same table may give the logits at the model's end.
#pragma once
#include "based/ops/training/dropout.h"

namespace based::ops {

struct Embedded {
  Tensor rows;   // [tokens, width]
  Tensor table;  // the table again, for its other use
};
// The rows of `table` [vocab, width] for ids int64 [tokens]. Where gradients are on and the other use takes the returned table, the other
// use's gradient is computed first, and the gradient of the rows is added to it in place. With p > 0 the rows are dropout(rows, p, draws,
// place), the same bits, on a GPU in one pass.
Embedded tied_embedding(const Tensor& table, const Tensor& ids, double p = 0, const Draws& draws = {}, int64_t place = 0);
// The rows alone. Their gradient is summed in a fixed order, unlike that of at::embedding, whose bits change from call to call on a GPU.
inline Tensor embedding(const Tensor& table, const Tensor& ids) { return tied_embedding(table, ids).rows; }

struct EmbeddedStep {
  Tensor rows;       // [rows, width], fp32 where the table is bf16 (the residual stream)
  Tensor positions;  // int64 [rows], of the tokens in their sequences, from 0
};
// The beginning of a step of decoding, one launch on a GPU: the rows of `table` for ids int64 [rows], and positions[r] = seen[slots[r]]++.
// `seen` int64 [slots] counts the tokens of each slot's sequence; slots int64 [rows] are all different. A negative id stands for a sequence
// that has ended and has row 0. No gradient.
EmbeddedStep embedding_step_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids);

// The same for consecutive tokens of the sequence at slots[0], ids int64 [tokens]: positions are seen[slots[0]], that plus 1, …, and seen
// advances by their number. The results have `padding` more rows, which repeat the last token's. The counts after each token but the last
// are written to `kept`, int64 [tokens − 1 or more], unless it has no rows.
EmbeddedStep embedding_tokens_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids, const Tensor& kept,
                               int64_t padding);

// sum[ids[t]] += grad[t] for all tokens t: sum [vocab, width], grad [tokens, width], ids int64. The gradients of a row are summed in fp32
// and in a fixed order. No gradient.
void embedding_backward_(Tensor sum, const Tensor& grad, const Tensor& ids);

// The operators.
struct EmbeddingRows {
  const Tensor& table;
  const Tensor& ids;
  double p = 0;
  int64_t seed = 0;
  const OptionalTensor& step;
  int64_t place = 0;
  int64_t first_token = 0;
  BASED_OPERATOR("embedding_rows -> rows", table, ids, or_else(p, 0.0), or_else(seed, 0), step, or_else(place, 0), or_else(first_token, 0))
};
struct EmbeddingBackward {
  const Tensor& sum;
  const Tensor& grad;
  const Tensor& ids;
  BASED_OPERATOR("embedding_backward_ -> ", written(sum), grad, ids)
};
struct EmbeddingStep {
  const Tensor& seen;
  const Tensor& slots;
  const Tensor& table;
  const Tensor& ids;
  BASED_OPERATOR("embedding_step_ -> rows, positions", written(seen), slots, table, ids)
};
struct EmbeddingTokens {
  const Tensor& seen;
  const Tensor& slots;
  const Tensor& table;
  const Tensor& ids;
  const Tensor& kept;
  int64_t padding;
  BASED_OPERATOR("embedding_tokens_ -> rows, positions", written(seen), slots, table, ids, written(kept), padding)
};

}  // namespace based::ops
