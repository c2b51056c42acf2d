// The ATen forms of Taylor attention, any floating type.
#pragma once
#include <tuple>

#include "based/ops/taylor/taylor_operators.h"

namespace based::ops {

// The references for tests and benchmarks: the paper's listing (explicit features and running sums), and the quadratic form (zero initial
// state, no final state).
std::tuple<Tensor, TaylorState> taylor_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                           const std::optional<TaylorState>& initial_state = {},
                                                           const TaylorDecay& decay = {});
Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                  const TaylorDecay& decay = {});

// φ(x): [..., d] -> [..., packed_features(d)] in the order of based/kernels/taylor/taylor.h.
Tensor taylor_features(const Tensor& x);

// Internal to based/ops: the chunked form, and a step without the scale.
struct TaylorForward {
  Tensor y, kv_state, k_state;
  Tensor denominator;  // [tokens, heads]
};
TaylorForward taylor_attention_chunked(const TaylorAttention& in);
Tensor taylor_attention_step_reference(const TaylorAttentionStep& in);

}  // namespace based::ops
