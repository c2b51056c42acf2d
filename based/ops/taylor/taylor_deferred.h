// torch.ops.based_cpp.taylor_deferred_step: steps of Taylor attention that keep up to 12 tokens pending beside the state and then add them
// to it together, so that most steps read the state but do not write it (based/kernels/taylor/deferred.h).
#pragma once
#include "based/ops/taylor/taylor_attention.h"

namespace based::ops {

// Tokens that are not in the state yet: k [slots, heads, 12, feature_dim], scaled, v [slots, heads, 12, head_dim], of the type of q; count
// int32 [slots, heads], the number of pending tokens, the same for all heads of a slot. The state and the pending tokens together are the
// state of taylor_attention_step.
struct TaylorPending {
  Tensor k, v, count;
};

// Memory for the pending tokens of every slot of `state`, for q of this type; no token is pending. It saves time where
// kernels::taylor_deferred_is_faster().
TaylorPending taylor_pending(const TaylorState& state, int64_t feature_dim, at::ScalarType type);

// As taylor_attention_step, but y is rounded differently: pending tokens are weighted by w(q·k), the others by φ(q)·φ(k).
Tensor taylor_deferred_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, TaylorPending& pending,
                            const Tensor& slots, const TaylorDecay& decay = {}, double scale = 1);

// Adds the pending tokens of `slots` to the state. It is then bit for bit the state after taylor_attention_step for each of these tokens on
// the same device.
void taylor_deferred_flush_(TaylorState& state, TaylorPending& pending, const Tensor& slots, const TaylorDecay& decay = {});

// The operators.
struct TaylorDeferredStep {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& pending_k;
  const Tensor& pending_v;
  const Tensor& pending;
  const Tensor& slots;
  const OptionalTensor& decay;
  double scale;
  bool decay_denominator = true;
  BASED_OPERATOR("taylor_deferred_step -> y", q, k, v, written(kv_state), written(k_state), written(pending_k), written(pending_v),
                 written(pending), slots, decay, or_else(scale, 1.0), or_else(decay_denominator, true))
};
struct TaylorDeferredFlush {
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& pending_k;
  const Tensor& pending_v;
  const Tensor& pending;
  const Tensor& slots;
  const OptionalTensor& decay;
  bool decay_denominator = true;
  BASED_OPERATOR("taylor_deferred_flush_ -> ", written(kv_state), written(k_state), pending_k, pending_v, written(pending), slots, decay,
                 or_else(decay_denominator, true))
};

}  // namespace based::ops
