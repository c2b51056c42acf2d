// Linear attention over features, normalised: y_t = Σ_{s≤t} (q_t·k_s) v_s / (Σ_{s≤t} q_t·k_s + eps).
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

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

}  // namespace based::kernels
