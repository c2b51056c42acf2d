// What causal_attention.cpp checks and splits, and the *.simd.cpp files compute once an instruction set. Queries and keys come in tiles of
// `attention_tile` tokens, one a vector lane, against blocks of `attention_block` tokens of the other side.
#pragma once
#include "based/kernels/causal_attention.h"
#include "based/kernels/cpu/isa.h"

namespace based::kernels::cpu {

constexpr int64_t attention_tile = 32, attention_block = 64;

// Head dimensions are padded with zeros to whole vectors.
constexpr int64_t attention_padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of memory that a thread needs: two transposed tiles, two tiles of results, two blocks of rows, two blocks of scores, and four
// numbers a token of a tile.
constexpr int64_t attention_work_floats(int64_t head_dim) {
  return attention_padded(head_dim) * (4 * attention_tile + 2 * attention_block) + 2 * attention_tile * attention_block +
         4 * attention_tile;
}

// Queries first .. first + attention_tile of a row (fewer at its end), one head.
BASED_DECLARE_SIMD(void, attention_forward_tile, (const CausalAttention&, int64_t row, int64_t first, int64_t head, float* work))

// Gradient of the same queries. Writes Σ y·grad_y of each into dot [q_tokens, heads], for the keys' gradients to use.
BASED_DECLARE_SIMD(void, attention_backward_queries,
                   (const CausalAttentionBackward&, int64_t row, int64_t first, int64_t head, float* dot, float* work))

// Gradient of keys and values first .. first + attention_tile of a row, one key head.
BASED_DECLARE_SIMD(void, attention_backward_keys,
                   (const CausalAttentionBackward&, int64_t row, int64_t first, int64_t kv_head, const float* dot, float* work))

// Writes the new key and value into the ring and computes the outputs of the heads that read this key head.
BASED_DECLARE_SIMD(void, attention_step_row, (const CausalAttentionStep&, int64_t row, int64_t kv_head))

}  // namespace based::kernels::cpu
