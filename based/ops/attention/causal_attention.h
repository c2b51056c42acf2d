// torch.ops.based_cpp.causal_attention: exact softmax attention, causal, over all keys or a sliding window; grouped heads.
#pragma once
#include "based/kernels/attention/causal_attention.h"
#include "based/ops/framework/operator.h"
#include "based/ops/training/dropout.h"

namespace based::ops {

// Weights of pairs are dropped after the softmax, each with probability p, the others divided by 1 − p. draws.seed, *draws.step, the place
// and the pair determine which (based/kernels/attention/causal_attention.h).
struct AttentionDropout {
  double p = 0;  // in [0, 1)
  Draws draws = {};
  int64_t place = 0;
};

// q [q_tokens, heads, head_dim], k and v [k_tokens, kv_heads, head_dim]; heads is a multiple of kv_heads; cu_seqlens_q, cu_seqlens_k int64
// [rows + 1]. A row's queries are its last tokens: with Lq queries and Lk ≥ Lq keys, query i attends over keys j with
//   i + Lk − Lq − window < j ≤ i + Lk − Lq,
// so `window` counts the keys of a query, its own token's included; window 0 means all. With dropout rows have at most 2^20 keys.
// Differentiable in q, k, v.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        int64_t window, double scale, const AttentionDropout& dropout = {});
Tensor causal_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                  int64_t window, double scale, const AttentionDropout& dropout = {});

// One token for each slot (paper, algorithm 3). The ring k_ring, v_ring [slots, capacity, kv_heads, head_dim] holds key p at p mod
// capacity; positions int64 [rows] are the positions of the rows' tokens in their sequences, from 0. Writes k and v [rows, kv_heads,
// head_dim] as keys p = positions[row], attends over the last min(p + 1, capacity) keys. A full cache is a ring that is grown before it
// wraps. No gradients.
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
  int64_t first_token = 0;
  BASED_OPERATOR("causal_attention -> y", q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, or_else(dropout_p, 0.0), or_else(seed, 0),
                 step, or_else(place, 0), or_else(first_token, 0))
};
struct CausalAttentionForward {
  CausalAttention inputs;
  BASED_OPERATOR("causal_attention_forward -> y, log_sum_exp", inputs.q, inputs.k, inputs.v, inputs.cu_seqlens_q, inputs.cu_seqlens_k,
                 inputs.window, inputs.scale, or_else(inputs.dropout_p, 0.0), or_else(inputs.seed, 0), inputs.step,
                 or_else(inputs.place, 0), or_else(inputs.first_token, 0))
};
struct CausalAttentionBackward {
  const Tensor& grad_y;
  CausalAttention forward;
  const Tensor& y;
  const Tensor& log_sum_exp;
  BASED_OPERATOR("causal_attention_backward -> grad_q, grad_k, grad_v", grad_y, forward.q, forward.k, forward.v, forward.cu_seqlens_q,
                 forward.cu_seqlens_k, forward.window, forward.scale, forward.dropout_p, forward.seed, forward.step, forward.place,
                 forward.first_token, y, log_sum_exp)
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

// Shapes and types, without reading device memory. Throws Error.
void check_causal_attention(const CausalAttention& in);

// The forward and the backward by the kernel of q's device; the reference where it has none for this call.
Result<CausalAttentionForward> causal_attention_forward(const CausalAttentionForward& in);
Result<CausalAttentionBackward> causal_attention_backward(const CausalAttentionBackward& in);
// Whether they call a kernel.
bool has_causal_attention_kernel(const CausalAttention& in);

// A step's arguments and the tensors that own their memory.
struct CausalAttentionStepLaunch {
  Tensor q, k, v, positions, slots, y;
  kernels::CausalAttentionStep arguments;
};
CausalAttentionStepLaunch prepare_causal_attention_step(const CausalAttentionStep& in);
// The kernel's arguments. q, k and v: packed heads, with any stride between tokens; the other tensors are contiguous.
kernels::CausalAttentionStep causal_attention_step_arguments(const CausalAttentionStep& in, const Tensor& y);

}  // namespace based::ops
