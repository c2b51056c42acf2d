// torch.ops.based.taylor_deferred_step: steps of Taylor attention whose tokens wait beside the state, which takes them in 12 at once, so
// that a step reads the state and does not write it (based/kernels/taylor_deferred.h).
#pragma once
#include "based/kernels/taylor_deferred.h"
#include "based/ops/taylor_attention.h"

namespace based::ops {

// What a state has not taken in yet: k [slots, heads, 12, feature_dim], scaled, v [slots, heads, 12, head_dim], of the type of q; count
// int32 [slots, heads], how many, the same for all heads of a slot. The sums with what waits are the state of taylor_attention_step.
struct TaylorPending {
  Tensor k, v, count;
};

// Room beside a state of so many slots for q of this type; nothing waits. Worth it where kernels::taylor_deferred_is_faster().
TaylorPending taylor_pending(const TaylorState& state, int64_t feature_dim, at::ScalarType type);

// As taylor_attention_step, with y rounded otherwise: what waits is weighted by w(q·k), the rest by φ(q)·φ(k).
Tensor taylor_deferred_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, TaylorPending& pending,
                            const Tensor& slots, const OptionalTensor& decay = {}, double scale = 1);

// The state at `slots` takes in what waits there: it is then, bit for bit, what as many taylor_attention_step leave on the same device.
void taylor_deferred_flush_(TaylorState& state, TaylorPending& pending, const Tensor& slots, const OptionalTensor& decay = {});

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
  BASED_OPERATOR("taylor_deferred_step -> y", q, k, v, written(kv_state), written(k_state), written(pending_k), written(pending_v),
                 written(pending), slots, decay, or_else(scale, 1.0))
};
struct TaylorDeferredFlush {
  const Tensor& kv_state;
  const Tensor& k_state;
  const Tensor& pending_k;
  const Tensor& pending_v;
  const Tensor& pending;
  const Tensor& slots;
  const OptionalTensor& decay;
  BASED_OPERATOR("taylor_deferred_flush_ -> ", written(kv_state), written(k_state), pending_k, pending_v, written(pending), slots, decay)
};

// Them with a device's kernels.
struct TaylorDeferredKernels {
  bool (*takes)(const kernels::TaylorAttention&);
  kernels::Status (*step)(const kernels::TaylorDeferred&);
  kernels::Status (*flush)(const kernels::TaylorDeferred&);
};
Tensor taylor_deferred_step_with(const TaylorDeferredKernels& table, const TaylorDeferredStep& in);
void taylor_deferred_flush_with(const TaylorDeferredKernels& table, const TaylorDeferredFlush& in);

}  // namespace based::ops
