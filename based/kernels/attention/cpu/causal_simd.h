// Functions that causal_attention.cpp calls, each compiled once per instruction set in the *.simd.cpp files. Each function owns a tile of
// `attention_tile` tokens, one per vector lane, and processes the other side in blocks of `attention_block` tokens.
#pragma once
#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/common/cpu/isa.h"

namespace based::kernels::cpu {

constexpr int64_t attention_tile = 32, attention_block = 64;

// Head dimensions are padded with zeros to whole vectors.
constexpr int64_t attention_padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of memory that a thread needs: two transposed tiles, two tiles of results, two blocks of rows, two blocks of scores, and four
// floats per token of a tile.
constexpr int64_t attention_work_floats(int64_t head_dim) {
  return attention_padded(head_dim) * (4 * attention_tile + 2 * attention_block) + 2 * attention_tile * attention_block +
         4 * attention_tile;
}

// Outputs of queries first .. first + attention_tile of a row (fewer at its end), one head.
BASED_DECLARE_SIMD(void, attention_forward_tile, (const CausalAttention&, int64_t row, int64_t first, int64_t head, float* work))

// Gradients of the same queries. Writes Σ y·grad_y of each query to dot [q_tokens, heads], which attention_backward_keys reads.
BASED_DECLARE_SIMD(void, attention_backward_queries,
                   (const CausalAttentionBackward&, int64_t row, int64_t first, int64_t head, float* dot, float* work))

// Gradients of keys and values first .. first + attention_tile of a row, one key head.
BASED_DECLARE_SIMD(void, attention_backward_keys,
                   (const CausalAttentionBackward&, int64_t row, int64_t first, int64_t kv_head, const float* dot, float* work))

// Writes the new key and value into the ring and computes the outputs of the heads that read this key head.
BASED_DECLARE_SIMD(void, attention_step_row, (const CausalAttentionStep&, int64_t row, int64_t kv_head))

}  // namespace based::kernels::cpu
