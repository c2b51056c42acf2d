// Linear attention with a decaying state and, optionally, the delta rule, which subtracts the value that the state already predicts for the
// key. With S the state of a head [key_dim, value_dim], each token computes
//   D = diag(exp(log_decay)) S,  u = beta (v − Dᵀk) with `delta`, else beta v,  S' = D + k uᵀ,  y = scale · S'ᵀq,
//   or with a bonus b  y = scale · (Sᵀq + (q · b⊙k) v)
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

constexpr int64_t gated_delta_rule_max_key_dim = 1024;

struct GatedDeltaRule {              // caller owns all memory
  const void* q = nullptr;           // [tokens, key_heads, key_dim]; head h reads key head h · key_heads / heads
  const void* k = nullptr;           // [tokens, key_heads, key_dim]
  const void* v = nullptr;           // [tokens, heads, value_dim]
  void* y = nullptr;                 // [tokens, heads, value_dim]
  const float* log_decay = nullptr;  // [tokens, heads, decay_dim]; null: no decay
  const float* beta = nullptr;       // [tokens, heads]; null: 1
  const float* bonus = nullptr;      // [heads, key_dim]; null: none
  float* state =
      nullptr;  // [slots, heads, key_dim, value_dim], read, then updated in place; null (not for a step): starts from zero, not kept
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]; a step ignores it
  const int64_t* slot = nullptr;       // [rows], state index of each row, no index twice; null (not for a step): row r has state r
  int64_t tokens = 0, rows = 0;
  int32_t key_heads = 1, heads = 1, key_dim = 1, value_dim = 1;  // key_dim 1..gated_delta_rule_max_key_dim
  int32_t decay_dim = 1;                                         // 1: all channels of a head share a decay; or key_dim
  bool delta = false;
  bool state_is_private = false;  // step: no kernel still running when this one starts writes state or slot, so it may read them early
  float scale = 1;
  DType dtype = DType::f32;  // type of q, k, v, y; the other tensors are fp32
};

// Gradients; deterministic. forward.state is the state before the rows, [rows, heads, key_dim, value_dim], and is overwritten; forward.y is
// ignored. Where heads share a q or k, each head writes its own gradient of it.
struct GatedDeltaRuleBackward {
  GatedDeltaRule forward;
  const void* grad_y = nullptr;               // [tokens, heads, value_dim]
  const float* grad_state = nullptr;          // [rows, heads, key_dim, value_dim], gradient of the states after the rows; null: zero
  void *grad_q = nullptr, *grad_k = nullptr;  // [tokens, heads, key_dim]
  void* grad_v = nullptr;                     // [tokens, heads, value_dim]
  float* grad_log_decay = nullptr;            // [tokens, heads, decay_dim], or null
  float* grad_beta = nullptr;                 // [tokens, heads], or null
  float* grad_initial_state = nullptr;        // [rows, heads, key_dim, value_dim], or null
};

// The error in the sizes and options, or null.
inline const char* validate(const GatedDeltaRule& a) {
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
// One token a row: tokens == rows. A row's result does not depend on the other rows, bit for bit.
Status gated_delta_rule_step(const GatedDeltaRule&);
}  // namespace cpu

namespace cuda {
// As above.
Status gated_delta_rule_step(const GatedDeltaRule&, Queue);
int64_t gated_delta_rule_scratch(const GatedDeltaRule&);
// bf16 is computed by chunks of tokens, with bf16 operands and fp32 sums; fp32, and sizes that the chunk kernels do not support, token by
// token.
Status gated_delta_rule_forward(const GatedDeltaRule&, void* scratch, Queue);
// Whether the backward supports the sizes and options: bf16, key_dim 64 or 128, value_dim a multiple of 64, no bonus, beta only with
// `delta`, a decay for each channel only without `delta`. Also whether the current GPU gives a block enough shared memory: 147 KB for
// key_dim 128 (183 KB with a decay for each channel), 101 KB for 64 with a decay for each channel, else less than 99 KB.
bool gated_delta_rule_has_backward(const GatedDeltaRule&);
int64_t gated_delta_rule_backward_scratch(const GatedDeltaRuleBackward&);
Status gated_delta_rule_backward(const GatedDeltaRuleBackward&, void* scratch, Queue);
}  // namespace cuda

// A device's launchers, as above. On the CPU there is a step alone, and the others are null.
struct GatedDeltaRuleLaunchers {
  Status (*step)(const GatedDeltaRule&, Queue);
  int64_t (*forward_scratch)(const GatedDeltaRule&) = nullptr;
  Status (*forward)(const GatedDeltaRule&, void* scratch, Queue) = nullptr;
  bool (*has_backward)(const GatedDeltaRule&) = nullptr;
  int64_t (*backward_scratch)(const GatedDeltaRuleBackward&) = nullptr;
  Status (*backward)(const GatedDeltaRuleBackward&, void* scratch, Queue) = nullptr;
};

}  // namespace based::kernels
