// Linear attention over features, normalised: y_t = Σ_{s≤t} (q_t·k_s) v_s / (Σ_{s≤t} q_t·k_s + eps).
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct LinearAttention {               // rows that start from zero and leave no sums; caller owns all memory
  const void* q = nullptr;             // [tokens, heads, features]
  const void* k = nullptr;             // [tokens, heads, features]
  const void* v = nullptr;             // [tokens, heads, head_dim]
  void* y = nullptr;                   // [tokens, heads, head_dim]
  float* denominator = nullptr;        // [tokens, heads], Σ q·k + eps, of either sign; kept for the backward; may be null
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]
  int64_t tokens = 0, rows = 0;
  int32_t heads = 0, features = 0, head_dim = 0;
  float eps = 0;
  DType dtype = DType::f32;  // of q, k, v, y
  bool single_tf32 = false;  // as that of CausalAttention
};

// Gradients. The forward's inputs, its y and its denominators are given again.
struct LinearAttentionBackward {
  LinearAttention forward;
  const void* grad_y = nullptr;  // like y
  void* grad_q = nullptr;        // like q
  void* grad_k = nullptr;        // like k
  void* grad_v = nullptr;        // like v
};

// One token a row: the sums get it, then y is read out of them.
struct LinearAttentionStep {      // caller owns all memory
  const void* q = nullptr;        // [rows, heads, features]
  const void* k = nullptr;        // [rows, heads, features]
  const void* v = nullptr;        // [rows, heads, head_dim]
  void* y = nullptr;              // [rows, heads, head_dim]
  float* kv_state = nullptr;      // [slots, heads, features, head_dim], Σ k vᵀ
  float* k_state = nullptr;       // [slots, heads, features], Σ k
  const int64_t* slot = nullptr;  // [rows], state row of each, none twice; null: row r uses state row r
  int64_t rows = 0, features = 0;
  int32_t heads = 0, head_dim = 0;
  float eps = 0;
  DType dtype = DType::f32;  // of q, k, v, y; sums are fp32 whatever this is
};

namespace cpu {
// Bit for bit the same for a row whatever the other rows are.
Status linear_attention_step(const LinearAttentionStep&);
}  // namespace cpu

namespace cuda {
// Over pairs of tokens, in fp32, features and head_dim up to kTaylorPairsHeadDim: docs/kernels/pair-attention.md.
bool linear_attention_takes(const LinearAttention&);
Status linear_attention_forward(const LinearAttention&, Stream);
int64_t linear_attention_backward_scratch(const LinearAttentionBackward&);
Status linear_attention_backward(const LinearAttentionBackward&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
