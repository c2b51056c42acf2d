// torch.ops.based.causal_attention: exact softmax attention, causal, over all keys or a sliding window; grouped heads.
#pragma once
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// q [q_tokens, heads, head_dim], k and v [k_tokens, kv_heads, head_dim]; heads is a multiple of kv_heads; cu_seqlens_q, cu_seqlens_k int64
// [rows + 1]. A row's queries are its last tokens: with Lq queries and Lk ≥ Lq keys, query i sees keys j with
//   i + Lk − Lq − window < j ≤ i + Lk − Lq,
// so `window` counts the keys seen, itself included; window 0 means all. Differentiable in q, k, v.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        int64_t window, double scale);
Tensor causal_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                  int64_t window, double scale);

// One token for each slot (paper, algorithm 3). The ring k_ring, v_ring [slots, capacity, kv_heads, head_dim] holds key p at p mod
// capacity; positions int64 [rows] are those of the rows' tokens in their texts, from 0. Writes k and v [rows, kv_heads, head_dim] as keys
// p = positions[row], attends over the last min(p + 1, capacity) keys. A full cache is a ring that is grown before it wraps. No gradients.
Tensor causal_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_ring, Tensor& v_ring, const Tensor& positions,
                             const Tensor& slots, double scale);

// The same for the output of a joint projection, qkv [rows, (heads + 2 kv_heads)·head_dim], whose queries and keys are first turned by
// their positions (rotary_ of pointwise.h, halves, the first `dim` of head_dim): at once where a kernel does that. qkv is used up.
Tensor rotary_attention_step(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, double scale,
                             int64_t dim, double base);

}  // namespace based::ops
