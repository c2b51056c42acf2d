// torch.ops.based_cpp.sample_: the next token of every row, drawn on the logits' device, so that a step needs no host.
#pragma once
#include "based/kernels/sampling/sampling.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// One entry a row, on the logits' device. kernels/sampling/sampling.h defines each option.
struct SampleOptions {
  Tensor position, seed, top_k;      // int64 [rows]
  Tensor temperature, top_p, min_p;  // fp32 [rows]
  Tensor penalty;                    // fp32 [rows], of repetition
  Tensor seen;                       // int32 [rows, kernels::sample_seen_words(vocab)], the penalised tokens; the drawn tokens are added
};

// logits [rows, vocab], fp32 or bf16 -> token, int64 [rows], contiguous; −1 where a row's logits are not finite. The draw depends on the
// row's logits and options alone. No gradient.
void sample_(Tensor token, const Tensor& logits, const SampleOptions& options);

// The same for consecutive tokens of one sequence, each drawn as if the drafts were the tokens drawn before it. `options` are those of the
// sequence, one row, but `position` is int64 [rows]; its marks are read, not written. drafts int64 [rows − 1]. Row r of seen_after, int32
// [rows, words], becomes the marks after its draw: the options' marks, the first r drafts and the drawn token.
void sample_tokens_(Tensor token, const Tensor& logits, const SampleOptions& options, const Tensor& drafts, Tensor seen_after);

// The operators.
struct Sample {
  const Tensor& token;
  const Tensor& logits;
  const Tensor& position;
  const Tensor& seed;
  const Tensor& top_k;
  const Tensor& temperature;
  const Tensor& top_p;
  const Tensor& min_p;
  const Tensor& penalty;
  const Tensor& seen;
  BASED_OPERATOR("sample_ -> ", written(token), logits, position, seed, top_k, temperature, top_p, min_p, penalty, written(seen))
};
struct SampleTokens {
  const Tensor& token;
  const Tensor& logits;
  const Tensor& position;
  const Tensor& seed;
  const Tensor& top_k;
  const Tensor& temperature;
  const Tensor& top_p;
  const Tensor& min_p;
  const Tensor& penalty;
  const Tensor& seen;
  const Tensor& drafts;
  const Tensor& seen_after;
  BASED_OPERATOR("sample_tokens_ -> ", written(token), logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen, drafts,
                 written(seen_after))
};

}  // namespace based::ops
