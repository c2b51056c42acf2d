// A step of softmax attention that gives queries and keys their rotary positions itself.
#pragma once
#include <tuple>

#include "based/kernels/attention/causal_attention.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// causal_attention_step for the output of a joint projection, qkv [rows, (heads + 2 kv_heads)·head_dim]. Queries and keys are first rotated
// by their positions (rotary_, halves, the first `dim` of head_dim), by the same kernel where it supports that. qkv is overwritten.
Tensor rotary_attention_step(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, double scale,
                             int64_t dim, double base);

// The same for the first `tokens` rows, consecutive tokens of the sequence at slots[0], at most kernels::kCausalAttentionTokens. The rings
// after each of them but the last are written to kept_k_ring and kept_v_ring, [tokens − 1 or more, capacity, kv_heads, head_dim], unless
// they have no rows. Rows of the result after the tokens repeat the last one.
struct KeptRings {
  const Tensor &k, &v;
};
Tensor rotary_attention_tokens(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, KeptRings kept,
                               int64_t tokens, double scale, int64_t dim, double base);

// The operators.
struct RotaryAttentionStep {
  const Tensor& qkv;
  const Tensor& k_ring;
  const Tensor& v_ring;
  const Tensor& positions;
  const Tensor& slots;
  double scale;
  int64_t dim;
  double base;
  BASED_OPERATOR("rotary_attention_step -> y", written(qkv), written(k_ring), written(v_ring), positions, slots, scale, dim, base)
};
// slots int64 [1] (framework/tokens_step.h).
struct RotaryAttentionTokens {
  const Tensor& qkv;
  const Tensor& k_ring;
  const Tensor& v_ring;
  const Tensor& positions;
  const Tensor& slots;
  const Tensor& kept_k_ring;
  const Tensor& kept_v_ring;
  int64_t tokens;
  double scale;
  int64_t dim;
  double base;
  BASED_OPERATOR("rotary_attention_tokens -> y", written(qkv), written(k_ring), written(v_ring), positions, slots, written(kept_k_ring),
                 written(kept_v_ring), tokens, scale, dim, base)
};

// The kernel's arguments; positions, slots and y are contiguous.
kernels::CausalAttentionTokens rotary_attention_tokens_arguments(const RotaryAttentionTokens& in, const Tensor& y);

// Views of a joint projection's output: q, k, v [rows, heads or kv_heads, head_dim] for this ring. Throws Error.
std::tuple<Tensor, Tensor, Tensor> columns_of_heads(const char* op, const Tensor& qkv, const Tensor& k_ring);

}  // namespace based::ops
