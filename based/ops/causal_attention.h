// torch.ops.based.causal_attention: exact softmax attention, causal, over all keys or a sliding window; grouped heads.
#pragma once
#include "based/kernels/causal_attention.h"
#include "based/ops/dropout.h"
#include "based/ops/operator.h"

namespace based::ops {

// Weights of pairs are dropped after the softmax, each with probability p, the others divided by 1 − p: as draws.seed, *draws.step, the
// place and the pair say (based/kernels/causal_attention.h).
struct AttentionDropout {
  double p = 0;  // in [0, 1)
  Draws draws = {};
  int64_t place = 0;
};

// q [q_tokens, heads, head_dim], k and v [k_tokens, kv_heads, head_dim]; heads is a multiple of kv_heads; cu_seqlens_q, cu_seqlens_k int64
// [rows + 1]. A row's queries are its last tokens: with Lq queries and Lk ≥ Lq keys, query i sees keys j with
//   i + Lk − Lq − window < j ≤ i + Lk − Lq,
// so `window` counts the keys seen, itself included; window 0 means all. With dropout rows have at most 2^20 keys. Differentiable in q, k,
// v.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        int64_t window, double scale, const AttentionDropout& dropout = {});
Tensor causal_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                  int64_t window, double scale, const AttentionDropout& dropout = {});

// One token for each slot (paper, algorithm 3). The ring k_ring, v_ring [slots, capacity, kv_heads, head_dim] holds key p at p mod
// capacity; positions int64 [rows] are those of the rows' tokens in their sequences, from 0. Writes k and v [rows, kv_heads, head_dim] as
// keys p = positions[row], attends over the last min(p + 1, capacity) keys. A full cache is a ring that is grown before it wraps. No
// gradients.
Tensor causal_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_ring, Tensor& v_ring, const Tensor& positions,
                             const Tensor& slots, double scale);

// The operators.
inline const OptionalTensor kNoStep;
struct CausalAttention {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens_q;
  const Tensor& cu_seqlens_k;
  int64_t window;
  double scale;
  double dropout_p = 0;
  int64_t seed = 0;
  const OptionalTensor& step = kNoStep;
  int64_t place = 0;
  BASED_OPERATOR("causal_attention -> y", q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, or_else(dropout_p, 0.0), or_else(seed, 0),
                 step, or_else(place, 0))
};
struct CausalAttentionForward {
  CausalAttention of;
  BASED_OPERATOR("causal_attention_forward -> y, log_sum_exp", of.q, of.k, of.v, of.cu_seqlens_q, of.cu_seqlens_k, of.window, of.scale,
                 or_else(of.dropout_p, 0.0), or_else(of.seed, 0), of.step, or_else(of.place, 0))
};
struct CausalAttentionBackward {
  const Tensor& grad_y;
  CausalAttention of;
  const Tensor& y;
  const Tensor& log_sum_exp;
  BASED_OPERATOR("causal_attention_backward -> grad_q, grad_k, grad_v", grad_y, of.q, of.k, of.v, of.cu_seqlens_q, of.cu_seqlens_k,
                 of.window, of.scale, of.dropout_p, of.seed, of.step, of.place, y, log_sum_exp)
};
struct CausalAttentionStep {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& k_ring;
  const Tensor& v_ring;
  const Tensor& positions;
  const Tensor& slots;
  double scale;
  BASED_OPERATOR("causal_attention_step -> y", q, k, v, written(k_ring), written(v_ring), positions, slots, scale)
};

// Shapes and types of [tokens, heads, head_dim], head_dim at most 256, key heads a divisor of heads. Throws Error.
void check_attention_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v);
// Shapes and types, without reading device memory. Throws Error.
void check_causal_attention(const CausalAttention& in);

// Them with a device's kernels. A null forward or backward: the reference runs.
struct CausalAttentionKernels {
  int64_t (*forward_scratch)(const kernels::CausalAttention&);
  kernels::Status (*forward)(const kernels::CausalAttention&, void* scratch);
  int64_t (*backward_scratch)(const kernels::CausalAttentionBackward&);
  kernels::Status (*backward)(const kernels::CausalAttentionBackward&, void* scratch);
  kernels::Status (*step)(const kernels::CausalAttentionStep&);
  bool joint_gradients = false;  // the backward may write them side by side, as columns of one tensor
  bool drops = false;            // forward and backward know dropout
};
Result<CausalAttentionForward> causal_attention_forward_with(const CausalAttentionKernels& table, const CausalAttention& in);
Result<CausalAttentionBackward> causal_attention_backward_with(const CausalAttentionKernels& table, const CausalAttentionBackward& in);
Tensor causal_attention_step_with(const CausalAttentionKernels& table, const CausalAttentionStep& in);

// A launch's arguments, and the memory behind them; y and log_sum_exp are the caller's to add.
struct CausalAttentionLaunch {
  Tensor q, k, v, q_starts, k_starts, step;
  kernels::CausalAttention arguments;
};
CausalAttentionLaunch prepare_causal_attention(const CausalAttention& in);
struct CausalAttentionStepLaunch {
  Tensor q, k, v, positions, slots, y;
  kernels::CausalAttentionStep arguments;
};
// What a kernel is told; a token's heads side by side, the rest contiguous.
kernels::CausalAttentionStep causal_attention_step_arguments(const CausalAttentionStep& in, const Tensor& y);
CausalAttentionStepLaunch prepare_causal_attention_step(const CausalAttentionStep& in);

}  // namespace based::ops
