// Rows of a table, as a language model has them at its beginning, where the same table gives the logits at its end.
#pragma once
#include "based/kernels/embedding.h"
#include "based/ops/dropout.h"

namespace based::ops {

struct Embedded {
  Tensor rows;   // [tokens, width]
  Tensor table;  // the table again, for its other use
};
// The rows of `table` [vocab, width] for ids int64 [tokens]. Where gradients are on and the other use takes the table that is returned,
// that one's gradient comes first, and the rows' are added to it where it lies. With p > 0 the rows are dropout(rows, p, draws, place), the
// same bits, on a GPU in one pass.
Embedded tied_embedding(const Tensor& table, const Tensor& ids, double p = 0, const Draws& draws = {}, int64_t place = 0);

struct EmbeddedStep {
  Tensor rows;       // [rows, width], fp32 where the table is bf16 (the residual stream)
  Tensor positions;  // int64 [rows], of the tokens in their sequences, from 0
};
// As a step of decoding begins, one launch on a GPU: the rows of `table` for ids int64 [rows], and positions[r] = seen[slots[r]]++: `seen`
// int64 [slots] counts the tokens of a slot's sequence, slots int64 [rows] are all different. A negative id, which stands for a sequence
// that is not drawn on, has row 0. No gradient.
EmbeddedStep embedding_step_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids);

// sum[ids[t]] += grad[t] for all tokens t: sum [vocab, width], grad [tokens, width], ids int64. What a row gets is summed in fp32 and in a
// fixed order. No gradient.
void embedding_backward_(Tensor sum, const Tensor& grad, const Tensor& ids);

// The operators.
struct EmbeddingRows {
  const Tensor& table;
  const Tensor& ids;
  double p = 0;
  int64_t seed = 0;
  const OptionalTensor& step;
  int64_t place = 0;
  BASED_OPERATOR("embedding_rows -> rows", table, ids, or_else(p, 0.0), or_else(seed, 0), step, or_else(place, 0))
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

// Them with a device's kernels, or else in ATen.
struct EmbeddingKernels {
  kernels::Status (*rows)(const kernels::EmbeddingRows&);
  bool (*supports)(const kernels::EmbeddingBackward&);
  int64_t (*scratch)(const kernels::EmbeddingBackward&);
  kernels::Status (*backward)(const kernels::EmbeddingBackward&, void* scratch);
  kernels::Status (*step)(const kernels::EmbeddingStep&);
};
Tensor embedding_rows_with(const EmbeddingKernels& kernels, const EmbeddingRows& in);
void embedding_backward_with(const EmbeddingKernels& kernels, const EmbeddingBackward& in);
Result<EmbeddingStep> embedding_step_with(const EmbeddingKernels& kernels, const EmbeddingStep& in);

}  // namespace based::ops
