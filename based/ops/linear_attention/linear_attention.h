// torch.ops.based_cpp.linear_attention: attention whose weights are inner products of features, so that the past is two sums.
#pragma once
#include <tuple>

#include "based/ops/framework/operator.h"

namespace based::ops {

// The two sums over the past, of each row: Σ k vᵀ [rows, heads, features, head_dim] and Σ k [rows, heads, features]; fp32, fp64 in fp64.
struct LinearAttentionState {
  Tensor kv, k;
};

// y_t = Σ_{j≤t} (q_t·k_j) v_j / (Σ_{j≤t} q_t·k_j + eps). q and k are features already, [tokens, heads, features], v [tokens, heads,
// head_dim], cu_seqlens int64 [rows + 1], initial_state of the rows (zero where absent). Where weights may be negative, the denominator may
// be negative or 0. Returns y [tokens, heads, head_dim] and the state after each row. Differentiable in q, k, v and both sums of
// initial_state. Throws Error naming operator, argument and value.
std::tuple<Tensor, LinearAttentionState> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                          const std::optional<LinearAttentionState>& initial_state, double eps);
// Only y, for rows that start from zero, without a final state. On a GPU in fp32 linear_attention_pairs runs where it is faster. Otherwise
// ATen multiplies whole squares of weights, one a row, where chunks would need as many operations.
Tensor linear_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps);
// The same by the weight of every pair of tokens. On a GPU in fp32 with features and head_dim up to 128 a kernel runs; the host does not
// read the rows' lengths.
Tensor linear_attention_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps);
// Token by token, for tests and benchmarks.
std::tuple<Tensor, LinearAttentionState> linear_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                    const Tensor& cu_seqlens,
                                                                    const std::optional<LinearAttentionState>& initial_state, double eps);

// The same for rows that continue from slots of a state: row r continues from slots[r], none twice. Where gradients are on, the function is
// differentiable and replaces the state's tensors. Where they are off, and as the operator torch.ops.based_cpp.linear_attention_prefill, it
// updates them in place.
Tensor linear_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor& kv_state,
                                Tensor& k_state, const Tensor& slots, double eps);

// One token for each slot: the sums [slots, heads, …] are updated in place at `slots` (int64 [rows]); q, k, v [rows, heads, …]. Returns
// [rows, heads, head_dim]; a row's bits do not depend on the other rows. No gradients.
Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& kv_state, Tensor& k_state, const Tensor& slots,
                             double eps);

// The operators.
struct LinearAttention {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_kv_state;
  const OptionalTensor& initial_k_state;
  double eps;
  bool final_state = true;  // false: kv_state and k_state have no rows
  BASED_OPERATOR("linear_attention -> y, kv_state, k_state", q, k, v, cu_seqlens, initial_kv_state, initial_k_state, eps,
                 or_else(final_state, true))
};
struct LinearAttentionPairs {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  double eps;
  BASED_OPERATOR("linear_attention_pairs -> y", q, k, v, cu_seqlens, eps)
};
struct LinearAttentionPairsForward {  // denominator: with eps
  LinearAttentionPairs inputs;
  BASED_OPERATOR("linear_attention_pairs_forward -> y, denominator", inputs.q, inputs.k, inputs.v, inputs.cu_seqlens, inputs.eps)
};
struct LinearAttentionPairsBackward {
  const Tensor& grad_y;
  LinearAttentionPairs forward;
  const Tensor& y;
  const Tensor& denominator;
  BASED_OPERATOR("linear_attention_pairs_backward -> grad_q, grad_k, grad_v", grad_y, forward.q, forward.k, forward.v, forward.cu_seqlens,
                 forward.eps, y, denominator)
};
struct LinearAttentionPrefill {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& slots;
  double eps;
  BASED_OPERATOR("linear_attention_prefill -> y", q, k, v, cu_seqlens, written(kv_state), written(k_state), slots, eps)
};
struct LinearAttentionStep {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& slots;
  double eps;
  BASED_OPERATOR("linear_attention_step -> y", q, k, v, written(kv_state), written(k_state), slots, eps)
};

}  // namespace based::ops
