// torch.ops.based_cpp.adjusted_logits: logits with biases and penalties, for draws by sample_.
#pragma once
#include "based/kernels/sampling/adjusted_logits.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// logits [rows, vocab], fp32 or bf16 -> fp32 [rows, vocab]; kernels/sampling/adjusted_logits.h has the formula. presence, frequency and
// penalty: fp32 [rows]; seen: int32 [rows, kernels::sample_seen_words(vocab)]; bias: fp32 [rows, vocab], or absent: no biases; counts:
// int32 [rows, vocab], or absent: `presence` and `frequency` have no effect. No gradient.
struct AdjustedLogits {
  const Tensor& logits;
  const Tensor& presence;
  const Tensor& frequency;
  const Tensor& penalty;
  const Tensor& seen;
  const OptionalTensor& bias;
  const OptionalTensor& counts;
  BASED_OPERATOR("adjusted_logits -> adjusted", logits, presence, frequency, penalty, seen, bias, counts)
};
Tensor adjusted_logits(const AdjustedLogits& in);
// The same in double precision, by ATen; logits of any floating type.
Tensor adjusted_logits_reference(const AdjustedLogits& in);

}  // namespace based::ops
