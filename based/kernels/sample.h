// The next token of every row from its logits: repetition penalty, temperature, top-k, min-p and top-p in this order, then a draw. With g_w
// independent Gumbel numbers, argmax_w (logit_w / temperature + g_w) is a draw from the softmax; g_w here is a function of seed, position
// and w alone.
#pragma once
#include <cmath>

#include "based/kernels/kernel.h"
#include "based/kernels/random_bits.h"

namespace based::kernels {

struct Sample {                        // caller owns all memory; every option has one entry a row
  const void* logits = nullptr;        // [rows, vocab], rows logits_stride apart
  int64_t* token = nullptr;            // [rows]; −1 where a logit is not a number or none is finite
  const int64_t* position = nullptr;   // [rows], of the token to be drawn
  const int64_t* seed = nullptr;       // [rows]
  const float* temperature = nullptr;  // [rows]; 0: the most likely token, the smallest of equals
  const int64_t* top_k = nullptr;      // [rows]; keep the k most likely, and all that equal the last of them; 0: all
  const float* top_p = nullptr;        // [rows]; of those, the fewest most likely whose probability reaches p, and all equal to the last
  const float* min_p = nullptr;        // [rows]; keep those with at least min_p times the probability of the most likely
  const float* penalty = nullptr;      // [rows]; of repetition, on tokens that are `seen`; 1: none
  uint32_t* seen = nullptr;            // [rows, sample_seen_words(vocab)], token w at bit w mod 32 of word w / 32; gains the drawn token
  int64_t rows = 0, vocab = 0, logits_stride = 0;
  DType dtype = DType::f32;  // of logits
};

constexpr int64_t sample_seen_words(int64_t vocab) { return (vocab + 31) / 32; }
constexpr bool sample_is_seen(const uint32_t* seen, int64_t token) { return (seen[token / 32] >> (token % 32) & 1) != 0; }
constexpr void sample_set_seen(uint32_t* seen, int64_t token) { seen[token / 32] |= uint32_t{1} << (token % 32); }

constexpr float sample_penalised(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

// Random bits of a token of a row: SplitMix64 whose start is the row's key. Seed and position are mixed one after the other, so that
// neither a neighbouring seed nor a neighbouring position gives the same bits at another place.
BASED_ON_BOTH uint64_t sample_key(uint64_t seed, uint64_t position) {
  return mixed_bits(mixed_bits(seed + kGoldenGamma) + position + kGoldenGamma);
}
BASED_ON_BOTH uint64_t sample_bits(uint64_t key, uint64_t token) { return mixed_bits(key + token * kGoldenGamma); }

// A Gumbel number −ln(E) for uniform bits, with E = −ln(1 − v) an exponential one: from −2.9 to 44.4, never infinite. v = bits / 2^64 keeps
// 24 significant bits down to 2^-64, since large Gumbel numbers, which decide among many words, are those of small v: of 50,257 words one
// would exceed 44.4 in 4e14 draws, where a v of 24 fixed bits ends at 17.3, which one exceeds in 670 draws. v is below 1, the float that it
// would round to; −2.9 instead of less is of no consequence, since a draw takes the largest.
BASED_ON_BOTH float sample_gumbel(uint64_t bits) {
  const float v = static_cast<float>(bits | 1) * 0x1p-64F;
  return -logf(-log1pf(-(v < 1 ? v : 0x1.fffffep-1F)));
}

namespace cpu {
Status sample(const Sample&);
}  // namespace cpu

namespace cuda {
Status sample(const Sample&, Stream);
}  // namespace cuda

}  // namespace based::kernels
