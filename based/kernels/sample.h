// The next token of every row from its logits: repetition penalty, temperature, top-k, min-p and top-p in this order, then a draw. With g_w
// independent Gumbel numbers, argmax_w (logit_w / temperature + g_w) is a draw from the softmax; g_w here is a function of seed, position
// and w alone.
#pragma once
#include <initializer_list>

#include "based/kernels/kernel.h"

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

// Random bits of a token: three rounds of a 64-bit mix over what it may depend on.
constexpr uint64_t sample_bits(uint64_t seed, uint64_t position, uint64_t token) {
  uint64_t bits = seed;
  for (const uint64_t word : {position, token, uint64_t{0}}) {
    bits += word + 0x9e3779b97f4a7c15ULL;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
    bits ^= bits >> 31;
  }
  return bits;
}

// In (0, 1), from the upper 24 bits.
constexpr float sample_uniform(uint64_t bits) { return (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F; }

namespace cpu {
Status sample(const Sample&);
}  // namespace cpu

namespace cuda {
Status sample(const Sample&, Stream);
}  // namespace cuda

}  // namespace based::kernels
