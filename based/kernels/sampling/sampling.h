// Samples the next token of every row from its logits: repetition penalty, temperature, top-k, min-p and top-p in this order, then a draw
// by the Gumbel-max trick: with independent Gumbel numbers g_w, argmax_w (logit_w / temperature + g_w) is a draw from the softmax. Here g_w
// is a function of seed, position and w only.
#pragma once
#include <cmath>

#include "based/kernels/common/launchers.h"
#include "based/kernels/common/random_bits.h"

namespace based::kernels {

struct Sample {                        // caller owns all memory; every option has one value a row
  const void* logits = nullptr;        // [rows, vocab], rows logits_stride elements apart
  int64_t* token = nullptr;            // [rows]; −1 where a logit is NaN or the largest one is infinite
  const int64_t* position = nullptr;   // [rows], position of the token to be drawn
  const int64_t* seed = nullptr;       // [rows]
  const float* temperature = nullptr;  // [rows]; 0: the most likely token, and of equal ones the one with the smallest id
  const int64_t* top_k = nullptr;      // [rows]; keep the k most likely tokens and all ties with the last of them; 0: keep all
  const float* top_p = nullptr;    // [rows]; of these, keep the fewest whose probabilities add up to p, and ties with the last; 1: keep all
  const float* min_p = nullptr;    // [rows]; keep tokens with at least min_p times the probability of the most likely one
  const float* penalty = nullptr;  // [rows]; repetition penalty of the `seen` tokens; 1: none
  uint32_t* seen = nullptr;        // [rows, sample_seen_words(vocab)], token w is bit w mod 32 of word w / 32; the drawn token is added
  int64_t rows = 0, vocab = 0, logits_stride = 0;
  DType dtype = DType::f32;  // type of the logits
  // Not null: the rows are consecutive tokens of one sequence, each drawn as if the drafts were the tokens drawn before it. Then all
  // options but `position` have one value for all rows; the marks of row r are these, [sample_seen_words(vocab)], and the first r drafts,
  // and are written to its row of `seen` before the draw.
  const uint32_t* seen_before = nullptr;
  const int64_t* drafts = nullptr;  // [rows − 1]

  BASED_ON_BOTH int64_t options_row(int64_t row) const { return seen_before != nullptr ? 0 : row; }
};

constexpr int64_t sample_seen_words(int64_t vocab) { return (vocab + 31) / 32; }
constexpr bool sample_is_seen(const uint32_t* seen, int64_t token) { return (seen[token / 32] >> (token % 32) & 1) != 0; }
constexpr void sample_set_seen(uint32_t* seen, int64_t token) { seen[token / 32] |= uint32_t{1} << (token % 32); }

constexpr float sample_penalised(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

// The random bits of a token of a row are outputs of SplitMix64 started at the row's key. Seed and position are mixed one after the other,
// so that the streams of neighbouring seeds or positions do not overlap with an offset.
BASED_ON_BOTH uint64_t sample_key(uint64_t seed, uint64_t position) {
  return mixed_bits(mixed_bits(seed + kGoldenGamma) + position + kGoldenGamma);
}
BASED_ON_BOTH uint64_t sample_bits(uint64_t key, uint64_t token) { return mixed_bits(key + token * kGoldenGamma); }

// Converts uniform bits to a Gumbel number −ln(E), where E = −ln(1 − v) is exponentially distributed and v = bits / 2^64. The result is
// between −2.9 and 44.4, never infinite. v has 24 significant bits down to 2^-64, because large Gumbel numbers, which decide among many
// words, come from small v: with 50,257 words a number above 44.4 would occur once in 4e14 draws, while a v of 24 fixed bits would cut off
// at 17.3, which is exceeded once in 670 draws. v is clamped below 1, to which it could round. The lower bound of −2.9 has no effect, since
// a draw takes the largest number.
BASED_ON_BOTH float sample_gumbel(uint64_t bits) {
  const float v = static_cast<float>(bits | 1) * 0x1p-64F;
  return -logf(-log1pf(-(v < 1 ? v : 0x1.fffffep-1F)));
}

namespace cpu {
Status sample(const Sample&);
}  // namespace cpu

namespace cuda {
Status sample(const Sample&, Queue);
}  // namespace cuda

// A device's launcher, as above.
struct SampleLaunchers {
  Status (*sample)(const Sample&, Queue);
};

}  // namespace based::kernels
