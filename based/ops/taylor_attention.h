// torch.ops.based.taylor_attention: second-order Taylor linear attention (paper, section 4.1), all rows of a packed batch at once.
#pragma once
#include <optional>
#include <tuple>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

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
                                                 const std::optional<TaylorState>& initial_state = {},
                                                 const std::optional<Tensor>& decay = {});

// The plain references, any floating type, compared with in tests and benchmarks: the paper's listing (explicit features and running
// sums), and the quadratic form (zero initial state, no final state).
std::tuple<Tensor, TaylorState> taylor_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                           const std::optional<TaylorState>& initial_state = {},
                                                           const std::optional<Tensor>& decay = {});
Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                  const std::optional<Tensor>& decay = {});

// The same for rows that go on from slots of a state: row r's is that of slots[r], none twice. Where gradients are on, it is differentiable
// and the state's tensors are replaced; where they are off, and as the operator torch.ops.based.taylor_attention_prefill, in place.
Tensor taylor_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, TaylorStateRef state,
                                const Tensor& slots, const std::optional<Tensor>& decay = {});

// One token for each slot (paper, algorithm 2): the state [slots, heads, …] is updated in place at `slots` (int64 [rows]);
// q, k, v [rows, heads, …]; q and k are multiplied by `scale` first. Returns [rows, heads, head_dim]. No gradients.
Tensor taylor_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                             const std::optional<Tensor>& decay = {}, double scale = 1);

// φ(x): [..., d] -> [..., packed_features(d)] in the order of based/kernels/taylor_attention.h.
Tensor taylor_features(const Tensor& x);

}  // namespace based::ops
