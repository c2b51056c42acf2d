// torch.ops.based.linear_attention: attention whose weights are inner products of features, so that the past is two sums.
#pragma once
#include <tuple>

#include "based/kernels/linear_attention.h"
#include "based/ops/operator.h"

namespace based::ops {

// The two sums over the past, of each row: Σ k vᵀ [rows, heads, features, head_dim] and Σ k [rows, heads, features]; fp32, fp64 in fp64.
struct LinearAttentionState {
  Tensor kv, k;
};

// y_t = Σ_{j≤t} (q_t·k_j) v_j / (Σ_{j≤t} q_t·k_j + eps). q and k are features already, [tokens, heads, features], v [tokens, heads,
// head_dim], cu_seqlens int64 [rows + 1], initial_state of the rows (zero where absent). Where weights may be negative, so may the
// denominator, which nothing keeps from 0. Returns y [tokens, heads, head_dim] and the state after each row. Differentiable in q, k, v and
// both sums of initial_state. Throws Error naming operator, argument and value.
std::tuple<Tensor, LinearAttentionState> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                          const std::optional<LinearAttentionState>& initial_state, double eps);
// y alone, of rows that start from zero and leave no state: on a GPU in fp32 by linear_attention_pairs, where that is sooner done; else in
// ATen by whole squares of weights, where no row is less work by chunks.
Tensor linear_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps);
// The same by the weight of every pair of tokens: on a GPU in fp32 a kernel, features and head_dim up to 128, without a look at the rows'
// lengths.
Tensor linear_attention_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps);
// Token by token, for tests and benchmarks.
std::tuple<Tensor, LinearAttentionState> linear_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                    const Tensor& cu_seqlens,
                                                                    const std::optional<LinearAttentionState>& initial_state, double eps);

// The same for rows that go on from slots of a state: row r's is that of slots[r], none twice. Where gradients are on, it is differentiable
// and the state's tensors are replaced; where they are off, and as the operator torch.ops.based.linear_attention_prefill, in place.
Tensor linear_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor& kv_state,
                                Tensor& k_state, const Tensor& slots, double eps);

// One token for each slot: the sums [slots, heads, …] are updated in place at `slots` (int64 [rows]); q, k, v [rows, heads, …]. Returns
// [rows, heads, head_dim], of which a row's bits depend on no other row. No gradients.
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
  LinearAttentionPairs of;
  BASED_OPERATOR("linear_attention_pairs_forward -> y, denominator", of.q, of.k, of.v, of.cu_seqlens, of.eps)
};
struct LinearAttentionPairsBackward {
  const Tensor& grad_y;
  LinearAttentionPairs of;
  const Tensor& y;
  const Tensor& denominator;
  BASED_OPERATOR("linear_attention_pairs_backward -> grad_q, grad_k, grad_v", grad_y, of.q, of.k, of.v, of.cu_seqlens, of.eps, y,
                 denominator)
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

// The pairs' operators with a device's kernels, of arguments that `takes` says yes to.
struct LinearAttentionPairsKernels {
  bool (*takes)(const kernels::LinearAttention&);
  kernels::Status (*forward)(const kernels::LinearAttention&);
  int64_t (*backward_scratch)(const kernels::LinearAttentionBackward&);
  kernels::Status (*backward)(const kernels::LinearAttentionBackward&, void* scratch);
};
Result<LinearAttentionPairsForward> linear_attention_pairs_forward_with(const LinearAttentionPairsKernels& table,
                                                                        const LinearAttentionPairs& in);
Result<LinearAttentionPairsBackward> linear_attention_pairs_backward_with(const LinearAttentionPairsKernels& table,
                                                                          const LinearAttentionPairsBackward& in);

}  // namespace based::ops
