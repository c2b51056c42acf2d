// torch.ops.based.taylor_deferred_step: steps of Taylor attention whose tokens wait beside the state, which takes them in 12 at once, so
// that a step reads the state and does not write it (based/kernels/taylor_deferred.h).
#pragma once
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
                            const Tensor& slots, const std::optional<Tensor>& decay = {}, double scale = 1);

// The state at `slots` takes in what waits there: it is then, bit for bit, what as many taylor_attention_step leave on the same device.
void taylor_deferred_flush_(TaylorState& state, TaylorPending& pending, const Tensor& slots, const std::optional<Tensor>& decay = {});

}  // namespace based::ops
