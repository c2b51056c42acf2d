// Linear attention whose state decays and may correct what it holds; S is a head's state [key_dim, value_dim], and of each token
//   D = diag(exp(log_decay)) S,  u = beta (v − Dᵀk) with `delta`, else beta v,  S' = D + k uᵀ,  y = scale · S'ᵀq,
//   or with a bonus b  y = scale · (Sᵀq + (q · b⊙k) v)
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

constexpr int64_t gated_delta_rule_max_key_dim = 1024;

struct GatedDeltaRule {              // caller owns all memory
  const void* q = nullptr;           // [tokens, key_heads, key_dim]; head h reads those of h · key_heads / heads
  const void* k = nullptr;           // [tokens, key_heads, key_dim]
  const void* v = nullptr;           // [tokens, heads, value_dim]
  void* y = nullptr;                 // [tokens, heads, value_dim]
  const float* log_decay = nullptr;  // [tokens, heads, decay_dim]; null: no decay
  const float* beta = nullptr;       // [tokens, heads]; null: 1
  const float* bonus = nullptr;      // [heads, key_dim]; null: none
  float* state = nullptr;  // [slots, heads, key_dim, value_dim], read, then updated in place; null, not in a step: from zero, none is left
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]; not in a step
  const int64_t* slot = nullptr;       // [rows], state row of each row, none twice; null, not in a step: row r has state row r
  int64_t tokens = 0, rows = 0;
  int32_t key_heads = 1, heads = 1, key_dim = 1, value_dim = 1;  // key_dim 1..gated_delta_rule_max_key_dim
  int32_t decay_dim = 1;                                         // 1: a head's channels decay alike; or key_dim
  bool delta = false;
  bool state_is_private = false;  // a step: no kernel before this one on the stream writes state or slot, so that they are read ahead of it
  float scale = 1;
  DType dtype = DType::f32;  // of q, k, v, y; all else is fp32
};

// Gradients, the same bits every time. `state` of the forward is before the rows [rows, heads, key_dim, value_dim], and is overwritten; y
// is ignored. A q or k that heads share gets a gradient from each.
struct GatedDeltaRuleBackward {
  GatedDeltaRule forward;
  const void* grad_y = nullptr;               // [tokens, heads, value_dim]
  const float* grad_state = nullptr;          // of the states after the rows, [rows, heads, key_dim, value_dim], or null
  void *grad_q = nullptr, *grad_k = nullptr;  // [tokens, heads, key_dim]
  void* grad_v = nullptr;                     // [tokens, heads, value_dim]
  float* grad_log_decay = nullptr;            // [tokens, heads, decay_dim], or null
  float* grad_beta = nullptr;                 // [tokens, heads], or null
  float* grad_initial_state = nullptr;        // [rows, heads, key_dim, value_dim], or null
};

// What is wrong with the sizes and options, or null.
inline const char* wrong_with(const GatedDeltaRule& a) {
  if (a.rows < 0 || a.tokens < 0) return "gated_delta_rule: rows and tokens must not be negative";
  if (a.key_dim < 1 || a.key_dim > gated_delta_rule_max_key_dim) return "gated_delta_rule: key_dim must be 1..1024";
  if (a.value_dim < 1 || a.key_heads < 1 || a.heads < 1) return "gated_delta_rule: heads and value_dim must be at least 1";
  if (a.heads % a.key_heads != 0) return "gated_delta_rule: heads must be a multiple of key_heads";
  if (a.log_decay && a.decay_dim != 1 && a.decay_dim != a.key_dim) return "gated_delta_rule: decay_dim must be 1 or key_dim";
  if (a.bonus && (a.beta || a.delta)) return "gated_delta_rule: a bonus goes without beta and delta";
  if (a.tokens > 0 && !(a.q && a.k && a.v && a.y)) return "gated_delta_rule: a tensor is null";
  return nullptr;
}

namespace cpu {
// One token a row: tokens == rows. A row's bits do not depend on the other rows.
Status gated_delta_rule_step(const GatedDeltaRule&);
}  // namespace cpu

namespace cuda {
// A row's bits do not depend on the other rows.
Status gated_delta_rule_step(const GatedDeltaRule&, Stream);
int64_t gated_delta_rule_scratch(const GatedDeltaRule&);
// bf16 by chunks of tokens, with sums in fp32 and their operands in bf16; fp32, and sizes that no chunk's kernel has, token by token.
Status gated_delta_rule_forward(const GatedDeltaRule&, void* scratch, Stream);
// Whether the sizes and options have a backward: bf16, 64 or 128 keys, value_dim a multiple of 64, no bonus, beta with `delta` alone, a
// decay for each channel without.
bool gated_delta_rule_has_backward(const GatedDeltaRule&);
int64_t gated_delta_rule_backward_scratch(const GatedDeltaRuleBackward&);
Status gated_delta_rule_backward(const GatedDeltaRuleBackward&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
