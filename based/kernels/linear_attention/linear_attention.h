// Normalised linear attention over features: y_t = Σ_{s≤t} (q_t·k_s) v_s / (Σ_{s≤t} q_t·k_s + eps).
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct LinearAttention {               // every row starts from zero sums; the final sums are not returned; caller owns all memory
  const void* q = nullptr;             // [tokens, heads, features]
  const void* k = nullptr;             // [tokens, heads, features]
  const void* v = nullptr;             // [tokens, heads, head_dim]
  void* y = nullptr;                   // [tokens, heads, head_dim]
  float* denominator = nullptr;        // [tokens, heads], Σ q·k + eps, positive or negative; read by the backward; may be null
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]
  int64_t tokens = 0, rows = 0;
  int32_t heads = 0, features = 0, head_dim = 0;
  float eps = 0;
  DType dtype = DType::f32;  // type of q, k, v and y
  bool single_tf32 = false;  // see CausalAttention
};

// Gradients. `forward` holds the forward's inputs, y and denominators.
struct LinearAttentionBackward {
  LinearAttention forward;
  const void* grad_y = nullptr;  // like y
  void* grad_q = nullptr;        // like q
  void* grad_k = nullptr;        // like k
  void* grad_v = nullptr;        // like v
};

// One token per row: adds the token to the running sums, then computes y from them.
struct LinearAttentionStep {      // caller owns all memory
  const void* q = nullptr;        // [rows, heads, features]
  const void* k = nullptr;        // [rows, heads, features]
  const void* v = nullptr;        // [rows, heads, head_dim]
  void* y = nullptr;              // [rows, heads, head_dim]
  float* kv_state = nullptr;      // [slots, heads, features, head_dim], Σ k vᵀ
  float* k_state = nullptr;       // [slots, heads, features], Σ k
  const int64_t* slot = nullptr;  // [rows], index into the states, distinct; null: row r uses slot r
  int64_t rows = 0, features = 0;
  int32_t heads = 0, head_dim = 0;
  float eps = 0;
  DType dtype = DType::f32;  // type of q, k, v and y; sums are always fp32
};

namespace cpu {
// A row's output bits do not depend on the other rows.
Status linear_attention_step(const LinearAttentionStep&);
}  // namespace cpu

namespace cuda {
// Computed over pairs of tokens in fp32, with features and head_dim up to kPairAttentionDim: docs/kernels/pair-attention.md.
bool linear_attention_takes(const LinearAttention&);
Status linear_attention_forward(const LinearAttention&, Queue);
int64_t linear_attention_backward_scratch(const LinearAttentionBackward&);
Status linear_attention_backward(const LinearAttentionBackward&, void* scratch, Queue);
}  // namespace cuda

// On the CPU.
struct LinearAttentionStepLaunchers {
  Status (*step)(const LinearAttentionStep&, Queue);
};

// On a GPU: over pairs of tokens.
struct LinearAttentionPairsLaunchers {
  bool (*supports)(const LinearAttention&);
  Status (*forward)(const LinearAttention&, Queue);
  int64_t (*backward_scratch)(const LinearAttentionBackward&);  // bytes
  Status (*backward)(const LinearAttentionBackward&, void* scratch, Queue);
};

}  // namespace based::kernels
