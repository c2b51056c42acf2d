// Ring buffers of the latest time steps, as states hold them: [slots, capacity, …], step p of a slot at p mod capacity. A growing cache is
// a ring that is grown before it wraps.
#pragma once
#include "based/mixers/sequences.h"
#include "based/mixers/state.h"
#include "based/ops/torch.h"

namespace based {

// How one prefill reads and writes rings of the same capacity: planned on the host from the slots' positions, once a pass over a model.
struct RingPlan {
  // Rows preceded by what they need of their slots' past: the latest min(position, history) steps, oldest first.
  Sequences history;       // the earlier steps alone
  Sequences with_history;  // the earlier steps of a row, then its new ones
  Tensor read;             // int64 [history.tokens()], entries of the flattened ring: slot·capacity + p mod capacity
  Tensor order;            // int64 [with_history.tokens()], entries of cat(earlier steps, new steps); empty where nothing is earlier
  // What the ring keeps of the new steps: the last min(length, capacity) of each row.
  Tensor kept;     // int64, new steps
  Tensor written;  // int64, ring entries, one for each of `kept`
};

// position int64 [slots of the state], steps written so far; history ≤ capacity.
RingPlan plan_ring(const Tensor& position, const Sequences& rows, const Slots& slots, int64_t capacity, int64_t history);

// The same where all steps are kept, in pages: entries of the flattened pool. Throws Error where a slot has no page for a step.
RingPlan plan_pages(const Tensor& position, const Sequences& rows, const Slots& slots, const StatePages& pages);

// The earlier steps of the plan out of ring [slots, capacity, …] or of a pool of pages: [history.tokens(), …].
Tensor read_ring(const Tensor& ring, const RingPlan& plan);
// Earlier and new steps [tokens, …], row by row.
Tensor join_history(const Tensor& earlier, const Tensor& fresh, const RingPlan& plan);
// The rows' new steps into the ring, which is replaced where gradients are on and written in place where they are off.
void write_ring(Tensor& ring, const Tensor& fresh, const RingPlan& plan);

}  // namespace based
