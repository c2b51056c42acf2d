// The loss of a language model. The logits of all rows are never in memory.
#pragma once
#include <tuple>

#include "based/ops/framework/operator.h"

namespace based::ops {

inline constexpr int64_t kIgnoredLabel = -100;

// Mean over labels ≠ −100 of the cross entropy of hidden·weightᵀ: hidden [tokens, d], weight [vocab, d], labels int64 [tokens]; 0 where
// there is no label. The result is fp32 (fp64 for double inputs). Logits are computed for labelled rows alone, in chunks: the logits of a
// whole batch are never in memory. Where gradients are on, they are computed together with the value, and the backward only scales them.
// `labelled` is the number of labels; −1: they are counted, which waits for a device. A caller that knows the rows of hidden that have a
// label gives them as `labelled_rows`, int64 [labels] and ascending. Then labels is int64 [labels], of these rows alone, and none is −100.
Tensor cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t labelled = -1,
                     const OptionalTensor& labelled_rows = {});
Tensor cross_entropy_reference(const Tensor& hidden, const Tensor& weight, const Tensor& labels);

// The log-probability of each row's target under softmax(hidden·weightᵀ), fp32 [tokens] (fp64 for double inputs): targets int64 [tokens],
// 0 .. vocab_size − 1. Rows of weight from vocab_size on are padding, which the softmax excludes. The logits of all rows are never in
// memory. No gradient.
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
// The gradients are undefined where they are not requested. grad_rows [labels, d] is the gradient of the rows of hidden that have a label.
// `rows`, int64, names these rows; where it is undefined, labelled_rows does, or without labelled_rows every row has a label. The gradient
// of all other rows is 0; the backward makes these zeros.
struct CrossEntropyForward {
  CrossEntropy inputs;
  bool grad_hidden, grad_weight;
  BASED_OPERATOR("cross_entropy_forward -> loss, grad_rows, rows, grad_weight", inputs.hidden, inputs.weight, inputs.labels,
                 inputs.labelled, inputs.labelled_rows, grad_hidden, grad_weight)
};
struct TokenLogProbabilities {
  const Tensor& hidden;
  const Tensor& weight;
  const Tensor& targets;
  int64_t vocab_size;
  BASED_OPERATOR("token_log_probabilities -> scores", hidden, weight, targets, vocab_size)
};

// Inside of based/ops: how a device computes these operators.

// From logits [rows, vocab] the loss of each row, `losses` [rows] in the type of their sums, and (softmax − one-hot)·scale in `gradient`,
// unless that is undefined: the logits themselves, or a tensor of their sizes in fp16.
struct CrossEntropyChunk {
  const Tensor &logits, &targets, &losses, &gradient;
  double scale;
};
// sum [m, n] += a [m, k] · b [k, n], where the sum may be of a wider type than a and b. With `first` the sum is overwritten. `memory` is a
// scratch tensor that all chunks share.
using AddProduct = void (*)(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first);
void add_product(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first);  // by ATen, on any device
struct CrossEntropyParts {
  AddProduct add_product;
  int64_t chunk_bytes;                 // size of a chunk's logits; a chunk has at least 64 rows
  bool weight_grad_row_major = false;  // the sum of weight's gradient has weight's layout; else it is transposed, and the products read
                                       // logits along their rows
  bool half_gradient = false;          // of fp32 inputs: the gradients are products of fp16 matrices, for which add_product gives fp32
};
Result<CrossEntropyForward> cross_entropy_in_chunks(const CrossEntropyParts& parts, const CrossEntropyForward& in);
Tensor token_log_probabilities_in_chunks(const CrossEntropyParts& parts, const TokenLogProbabilities& in);

}  // namespace based::ops
