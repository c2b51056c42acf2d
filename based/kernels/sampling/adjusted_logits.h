// Adds biases to logits and applies the penalties that depend on the sequence, before a draw (sampling.h). With c = how often a token has
// been generated, as in OpenAI's API and in vLLM's order:
//   x = logit + bias;  x = penalised(x) if the token is in the sequence;  x − frequency·c − presence·[c > 0]
#pragma once
#include "based/kernels/sampling/sampling.h"

namespace based::kernels {

struct AdjustedLogits {             // caller owns all memory
  const void* logits = nullptr;     // [rows, vocab], rows logits_stride elements apart
  float* adjusted = nullptr;        // [rows, vocab]
  const float* bias = nullptr;      // [rows, vocab]; −inf: the token cannot be drawn; null: no biases
  const int32_t* counts = nullptr;  // [rows, vocab], how often each token has been generated; null: `presence` and `frequency` are not read
  const float* presence = nullptr;  // [rows]
  const float* frequency = nullptr;  // [rows]
  const float* penalty = nullptr;    // [rows], of repetition; 1: none
  const uint32_t* seen = nullptr;    // [rows, sample_seen_words(vocab)], the tokens that `penalty` applies to
  int64_t rows = 0, vocab = 0, logits_stride = 0;
  DType dtype = DType::f32;  // type of the logits
};

// One element: `at` = row · vocab + token.
BASED_ON_BOTH float adjusted_logit(const AdjustedLogits& p, float logit, int64_t row, int64_t token, int64_t at) {
  float x = p.bias != nullptr ? logit + p.bias[at] : logit;
  const float penalty = p.penalty[row];
  if (penalty != 1 && sample_is_seen(p.seen + row * sample_seen_words(p.vocab), token)) x = sample_penalised(x, penalty);
  if (p.counts == nullptr || p.counts[at] == 0) return x;
  return x - p.frequency[row] * static_cast<float>(p.counts[at]) - p.presence[row];
}

namespace cpu {
Status adjusted_logits(const AdjustedLogits&);
}  // namespace cpu

namespace cuda {
Status adjusted_logits(const AdjustedLogits&, Queue);
}  // namespace cuda

// A device's launcher, as above.
struct AdjustedLogitsLaunchers {
  Status (*adjusted_logits)(const AdjustedLogits&, Queue);
};

}  // namespace based::kernels
