// The tensors that every form of the gated delta rule reads.
#pragma once
#include "based/ops/framework/arguments.h"

namespace based::ops {

// For a head and token t:  D = diag(exp(log_decay_t)) S_{t−1},  S_t = D + k_t (beta_t (v_t − Dᵀk_t))ᵀ with `delta`, else D + k_t (beta_t
// v_t)ᵀ; y_t = scale · S_tᵀq_t, and with a bonus u, without beta and delta, y_t = scale · (S_{t−1}ᵀq_t + (q_t · u⊙k_t) v_t).
struct GatedDeltaRuleInputs {
  Tensor q, k;                    // [tokens, key_heads, key_dim]; head h reads head h · key_heads / heads
  Tensor v;                       // [tokens, heads, value_dim], of q's type
  OptionalTensor log_decay = {};  // [tokens, heads] or [tokens, heads, key_dim], none above 0; absent: no decay
  OptionalTensor beta = {};       // [tokens, heads]; absent: 1
  OptionalTensor bonus = {};      // [heads, key_dim]
  bool delta = false;
  double scale = 1;
};

}  // namespace based::ops
