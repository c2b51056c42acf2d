// The loss of a language model, whose logits are never all in memory.
#pragma once
#include <tuple>

#include "based/kernels/cross_entropy.h"
#include "based/ops/operator.h"

namespace based::ops {

inline constexpr int64_t kIgnoredLabel = -100;

// Mean over labels ≠ −100 of the cross entropy of hidden·weightᵀ: hidden [tokens, d], weight [vocab, d], labels int64 [tokens]; 0 where
// there is no label. The result is fp32 (fp64 for double inputs). Logits are made only where a label is, in chunks; the logits of a
// whole batch never exist. Where gradients are on, they are computed with the value; the backward only scales them.
// `labelled` is how many labels there are; −1: they are counted, which waits for a device. Where the caller knows the rows of hidden that
// have a label, `labelled_rows`, int64 [labels] and ascending, says them; labels is then int64 [labels], theirs alone, and none is −100.
Tensor cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t labelled = -1,
                     const OptionalTensor& labelled_rows = {});
Tensor cross_entropy_reference(const Tensor& hidden, const Tensor& weight, const Tensor& labels);

// The log-probability of each row's target under softmax(hidden·weightᵀ), fp32 [tokens] (fp64 for double inputs): targets int64 [tokens],
// 0 .. vocab_size − 1. Rows of weight from vocab_size on are padding, which the softmax leaves out. The logits of all rows never exist. No
// gradient.
Tensor token_log_probabilities(const Tensor& hidden, const Tensor& weight, const Tensor& targets, int64_t vocab_size);

// The operators.
struct CrossEntropy {
  const Tensor& hidden;
  const Tensor& weight;
  const Tensor& labels;
  int64_t labelled;
  const OptionalTensor& labelled_rows;
  BASED_OPERATOR("cross_entropy -> loss", hidden, weight, labels, or_else(labelled, -1), labelled_rows)
};
// Its gradients are undefined where they are not asked for. grad_rows [labels, d] is that of hidden's rows that have a label, int64 `rows`;
// where `rows` is undefined, those of labelled_rows, or without it all. The others' are zeros, which nobody needs to have before the
// backward.
struct CrossEntropyForward {
  CrossEntropy of;
  bool grad_hidden, grad_weight;
  BASED_OPERATOR("cross_entropy_forward -> loss, grad_rows, rows, grad_weight", of.hidden, of.weight, of.labels, of.labelled,
                 of.labelled_rows, grad_hidden, grad_weight)
};
struct TokenLogProbabilities {
  const Tensor& hidden;
  const Tensor& weight;
  const Tensor& targets;
  int64_t vocab_size;
  BASED_OPERATOR("token_log_probabilities -> scores", hidden, weight, targets, vocab_size)
};

// Them by a device's parts.

// From logits [rows, vocab] the loss of each row, `losses` [rows] in their type of sums, and (softmax − one-hot)·scale in `gradient`,
// unless that is undefined: the logits themselves, or of their sizes in fp16.
struct CrossEntropyChunk {
  const Tensor &logits, &targets, &losses, &gradient;
  double scale;
};
using CrossEntropySoftmax = void (*)(const CrossEntropyChunk&);
// sum [m, n] += a [m, k] · b [k, n], where the sum may be of a wider type than a and b; the first one finds nothing in it. `memory` lives
// from chunk to chunk.
using AddProduct = void (*)(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first);
void add_product(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first);  // by ATen, on any device
struct CrossEntropyParts {
  CrossEntropySoftmax softmax;
  AddProduct add_product;
  int64_t chunk_bytes;                 // of a chunk's logits, which are those of 64 rows at least
  bool weight_grad_row_major = false;  // weight's gradient lies as weight does; or transposed, so that logits are read along their rows
  bool half_gradient = false;          // fp32 inputs, whose gradients are products of fp16: add_product gives fp32 for it
};
Result<CrossEntropyForward> cross_entropy_with(const CrossEntropyParts& parts, const CrossEntropyForward& in);
Tensor token_log_probabilities_with(const CrossEntropyParts& parts, const TokenLogProbabilities& in);
// The softmax by a kernel, or in ATen where the logits' type has none.
void cross_entropy_softmax_with(kernels::Status (*kernel)(const kernels::CrossEntropy&), const CrossEntropyChunk& chunk);

}  // namespace based::ops
