// The operators of Taylor attention, and the checks of their arguments.
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

// The recurrent state, two tensors so that rows stay aligned: kv [rows, heads, packed_features, head_dim], Σ φ(k) vᵀ, and the denominator's
// k [rows, heads, packed_features], Σ φ(k). fp32; fp64 for double inputs.
struct TaylorState {
  Tensor kv, k;
};

// Fixed decay: rates [heads] in (0, 1], not differentiated; none: 1. `denominator`: whether the denominator and its state decay too; if
// not, only the numerator and kv do.
struct TaylorDecay {
  OptionalTensor rates;
  bool denominator = true;
  TaylorDecay() = default;
  TaylorDecay(OptionalTensor given, bool both = true) : rates(std::move(given)), denominator(both) {}
  TaylorDecay(Tensor given, bool both = true) : rates(std::move(given)), denominator(both) {}
};

// In the operators, decay and decay_denominator are the members of TaylorDecay.
struct TaylorAttention {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_kv_state;
  const OptionalTensor& initial_k_state;
  const OptionalTensor& decay;
  bool final_state = true;  // false: kv_state and k_state have no rows
  bool decay_denominator = true;
  BASED_OPERATOR("taylor_attention -> y, kv_state, k_state", q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay,
                 or_else(final_state, true), or_else(decay_denominator, true))
};
struct TaylorAttentionForward {
  TaylorAttention inputs;
  BASED_OPERATOR("taylor_attention_forward -> y, kv_state, k_state, denominator", inputs.q, inputs.k, inputs.v, inputs.cu_seqlens,
                 inputs.initial_kv_state, inputs.initial_k_state, inputs.decay, or_else(inputs.final_state, true),
                 or_else(inputs.decay_denominator, true))
};
struct TaylorAttentionBackward {
  const Tensor& grad_y;
  const OptionalTensor& grad_kv_state;
  const OptionalTensor& grad_k_state;
  TaylorAttention forward;
  const Tensor& y;
  const Tensor& denominator;
  BASED_OPERATOR("taylor_attention_backward -> grad_q, grad_k, grad_v, grad_initial_kv_state, grad_initial_k_state", grad_y, grad_kv_state,
                 grad_k_state, forward.q, forward.k, forward.v, forward.cu_seqlens, forward.initial_kv_state, forward.initial_k_state,
                 forward.decay, forward.final_state, forward.decay_denominator, y, denominator)
};
struct TaylorAttentionPrefill {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& slots;
  const OptionalTensor& decay;
  bool decay_denominator = true;
  BASED_OPERATOR("taylor_attention_prefill -> y", q, k, v, cu_seqlens, written(kv_state), written(k_state), slots, decay,
                 or_else(decay_denominator, true))
};
struct TaylorAttentionStep {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& slots;
  const OptionalTensor& decay;
  double scale;
  bool decay_denominator = true;
  BASED_OPERATOR("taylor_attention_step -> y", q, k, v, written(kv_state), written(k_state), slots, decay, or_else(scale, 1.0),
                 or_else(decay_denominator, true))
};

// Rows of q, k, v and y after the first `tokens` are padding; slots int64 [1] (framework/tokens_step.h).
struct TaylorAttentionTokens {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& slots;
  const Tensor& kept_kv_state;
  const Tensor& kept_k_state;
  int64_t tokens;
  const OptionalTensor& decay;
  double scale;
  bool decay_denominator = true;
  BASED_OPERATOR("taylor_attention_tokens -> y", q, k, v, written(kv_state), written(k_state), slots, written(kept_kv_state),
                 written(kept_k_state), tokens, decay, or_else(scale, 1.0), or_else(decay_denominator, true))
};

// Shapes, types and ranges, without reading device memory. Throw Error.
void check_taylor_attention(const char* op, const TaylorAttention& in);
void check_taylor_attention_prefill(const char* op, const TaylorAttentionPrefill& in);
void check_taylor_attention_step(const char* op, const TaylorAttentionStep& in);
void check_taylor_attention_tokens(const char* op, const TaylorAttentionTokens& in);

}  // namespace based::ops
