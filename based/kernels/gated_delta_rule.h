// One token of linear attention whose state decays and may correct what it holds; S is a head's state [key_dim, value_dim]:
//   D = diag(exp(log_decay)) S,  u = beta (v − Dᵀk) with `delta`, else beta v,  S' = D + k uᵀ,  y = scale · S'ᵀq,
//   or with a bonus b  y = scale · (Sᵀq + (q · b⊙k) v)
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

constexpr int64_t gated_delta_rule_max_key_dim = 1024;

struct GatedDeltaRuleStep {          // caller owns all memory
  const void* q = nullptr;           // [rows, key_heads, key_dim]; head h reads those of h · key_heads / heads
  const void* k = nullptr;           // [rows, key_heads, key_dim]
  const void* v = nullptr;           // [rows, heads, value_dim]
  void* y = nullptr;                 // [rows, heads, value_dim]
  const float* log_decay = nullptr;  // [rows, heads, decay_dim]; null: no decay
  const float* beta = nullptr;       // [rows, heads]; null: 1
  const float* bonus = nullptr;      // [heads, key_dim]; null: none
  float* state = nullptr;            // [slots, heads, key_dim, value_dim], read and written
  const int64_t* slot = nullptr;     // [rows], state row of each row, none twice
  int64_t rows = 0;
  int32_t key_heads = 1, heads = 1, key_dim = 1, value_dim = 1;  // key_dim 1..gated_delta_rule_max_key_dim
  int32_t decay_dim = 1;                                         // 1: a head's channels decay alike; or key_dim
  bool delta = false;
  float scale = 1;
  DType dtype = DType::f32;  // of q, k, v, y; all else is fp32
};

namespace cpu {
// A row's bits do not depend on the other rows.
Status gated_delta_rule_step(const GatedDeltaRuleStep&);
}  // namespace cpu

}  // namespace based::kernels
