// A step of softmax attention that gives queries and keys their rotary positions itself.
#pragma once
#include <tuple>

#include "based/ops/framework/operator.h"

namespace based::ops {

// causal_attention_step for the output of a joint projection, qkv [rows, (heads + 2 kv_heads)·head_dim]. Queries and keys are first rotated
// by their positions (rotary_, halves, the first `dim` of head_dim), by the same kernel where it supports that. qkv is overwritten.
Tensor rotary_attention_step(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, double scale,
                             int64_t dim, double base);

// The operator.
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

// Views of a joint projection's output: q, k, v [rows, heads or kv_heads, head_dim] for this ring. Throws Error.
std::tuple<Tensor, Tensor, Tensor> columns_of_heads(const char* op, const Tensor& qkv, const Tensor& k_ring);

}  // namespace based::ops
