// torch.ops.based.taylor_attention: second-order Taylor linear attention (paper, section 4.1), all rows of a packed batch at once.
#pragma once
#include <tuple>

#include "based/kernels/taylor_attention.h"
#include "based/ops/operator.h"

namespace based::ops {

// The recurrent state, two tensors so that rows stay aligned: kv [rows, heads, packed_features, head_dim], Σ φ(k) vᵀ, and the denominator's
// k [rows, heads, packed_features], Σ φ(k). fp32; fp64 for double inputs.
struct TaylorState {
  Tensor kv, k;
};
// A state whose tensors are somebody's, who has what becomes of them.
struct TaylorStateRef {
  Tensor &kv, &k;
  TaylorStateRef(Tensor& kv_sums, Tensor& k_sums) : kv(kv_sums), k(k_sums) {}
  TaylorStateRef(TaylorState& state) : kv(state.kv), k(state.k) {}
};

// q, k [tokens, heads, feature_dim] (already scaled by feature_dim^-1/4), v [tokens, heads, head_dim], cu_seqlens int64 [rows + 1],
// initial_state of the rows (zero where absent), decay [heads] in (0, 1], not differentiated.
// Returns y [tokens, heads, head_dim] and the final state. Differentiable in q, k, v and both tensors of initial_state.
// feature_dim 1..64. Throws Error naming operator, argument and value.
std::tuple<Tensor, TaylorState> taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                 const std::optional<TaylorState>& initial_state = {}, const OptionalTensor& decay = {});

// y alone, of rows that start from zero and leave no state, which costs memory and, in fp32 on a GPU, time.
Tensor taylor_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                      const OptionalTensor& decay = {});

// The plain references, any floating type, compared with in tests and benchmarks: the paper's listing (explicit features and running
// sums), and the quadratic form (zero initial state, no final state).
std::tuple<Tensor, TaylorState> taylor_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                           const std::optional<TaylorState>& initial_state = {},
                                                           const OptionalTensor& decay = {});
Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                  const OptionalTensor& decay = {});

// The same for rows that go on from slots of a state: row r's is that of slots[r], none twice. Where gradients are on, it is differentiable
// and the state's tensors are replaced; where they are off, and as the operator torch.ops.based.taylor_attention_prefill, in place.
Tensor taylor_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, TaylorStateRef state,
                                const Tensor& slots, const OptionalTensor& decay = {});

// One token for each slot (paper, algorithm 2): the state [slots, heads, …] is updated in place at `slots` (int64 [rows]);
// q, k, v [rows, heads, …]; q and k are multiplied by `scale` first. Returns [rows, heads, head_dim]. No gradients.
Tensor taylor_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                             const OptionalTensor& decay = {}, double scale = 1);

// φ(x): [..., d] -> [..., packed_features(d)] in the order of based/kernels/taylor_attention.h.
Tensor taylor_features(const Tensor& x);

// The operators.
struct TaylorAttention {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_kv_state;
  const OptionalTensor& initial_k_state;
  const OptionalTensor& decay;
  bool final_state = true;  // false: kv_state and k_state have no rows
  BASED_OPERATOR("taylor_attention -> y, kv_state, k_state", q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay,
                 or_else(final_state, true))
};
struct TaylorAttentionForward {
  TaylorAttention of;
  BASED_OPERATOR("taylor_attention_forward -> y, kv_state, k_state, denominator", of.q, of.k, of.v, of.cu_seqlens, of.initial_kv_state,
                 of.initial_k_state, of.decay, or_else(of.final_state, true))
};
struct TaylorAttentionBackward {
  const Tensor& grad_y;
  const OptionalTensor& grad_kv_state;
  const OptionalTensor& grad_k_state;
  TaylorAttention of;
  const Tensor& y;
  const Tensor& denominator;
  BASED_OPERATOR("taylor_attention_backward -> grad_q, grad_k, grad_v, grad_initial_kv_state, grad_initial_k_state", grad_y, grad_kv_state,
                 grad_k_state, of.q, of.k, of.v, of.cu_seqlens, of.initial_kv_state, of.initial_k_state, of.decay, of.final_state, y,
                 denominator)
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
  BASED_OPERATOR("taylor_attention_prefill -> y", q, k, v, cu_seqlens, written(kv_state), written(k_state), slots, decay)
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
  BASED_OPERATOR("taylor_attention_step -> y", q, k, v, written(kv_state), written(k_state), slots, decay, or_else(scale, 1.0))
};

// Them with a device's kernels.
struct TaylorAttentionKernels {
  int64_t (*forward_scratch)(const kernels::TaylorAttention&);
  kernels::Status (*forward)(const kernels::TaylorAttention&, void* scratch);
  int64_t (*backward_scratch)(const kernels::TaylorAttentionBackward&);
  kernels::Status (*backward)(const kernels::TaylorAttentionBackward&, void* scratch);
  kernels::Status (*step)(const kernels::TaylorAttention&);
  int64_t step_head_dim = kNoLimit;                                               // the largest that the step's kernel takes
  bool step_scales = false;                                                       // it multiplies q and k by a scale
  bool (*takes_strides)(const kernels::TaylorAttention&, bool states) = nullptr;  // forward and backward, of these; null: of none
};
Result<TaylorAttentionForward> taylor_attention_forward_with(const TaylorAttentionKernels& table, const TaylorAttention& in);
Result<TaylorAttentionBackward> taylor_attention_backward_with(const TaylorAttentionKernels& table, const TaylorAttentionBackward& in);
Tensor taylor_attention_prefill_with(const TaylorAttentionKernels& table, const TaylorAttentionPrefill& in);
Tensor taylor_attention_step_with(const TaylorAttentionKernels& table, const TaylorAttentionStep& in);

// Shapes, types and ranges, without reading device memory. Throw Error.
void check_taylor_attention(const char* op, const TaylorAttention& in);
void check_taylor_attention_step(const char* op, const TaylorAttentionStep& in);

// Memory of a launch, kept until it is over.
struct TaylorLaunch {
  Tensor q, k, v, cu_seqlens, decay;
  kernels::TaylorAttention arguments;
};
struct TaylorStepLaunch : TaylorLaunch {
  Tensor slots, y;
};
// What a kernel is told of a step, but for the scale; all contiguous, decay fp32 or absent.
kernels::TaylorAttention taylor_step_arguments(const TaylorAttentionStep& in, const Tensor& y);
TaylorStepLaunch prepare_taylor_step(const TaylorAttentionStep& in);

}  // namespace based::ops
