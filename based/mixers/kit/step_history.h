// State tensors with one entry per time step, such as the keys and values of attention. They are stored in one of three ways:
// - a ring buffer [slots, capacity, …] of the latest `capacity` steps, with step p at p mod capacity;
// - a tensor that grows with the sequence and stores all steps (StateTensor::grows);
// - pages of a pool (StatePages).
#pragma once
#include <memory>
#include <string>

#include "based/mixers/kit/pass.h"
#include "based/mixers/kit/state.h"
#include "based/ops/attention/attention_cache.h"
#include "based/runtime/torch.h"

namespace based {

// Reads the steps before each row of a parallel pass, and appends the row's own. Of a ring buffer it reads the last capacity − 1 steps:
// with a token's own step these are the window that the token attends to. Of a growing or paged tensor it reads all steps.
class StepHistory {
 public:
  // For all tensors of the state that are stored in the same way and with the same capacity as the tensor `name`. Growing tensors are
  // enlarged to hold the rows' steps. Throws Error if a slot has no page for one of its steps.
  StepHistory(MixerState& state, const Pass& pass, const std::string& name);

  // Returns the earlier steps [earlier_cu_seqlens()[rows], …], row by row and oldest first. Then appends `fresh`, the rows' own steps
  // [tokens, …], to the state: with gradients on as new tensors, with gradients off in place.
  Tensor advance(const std::string& name, const Tensor& fresh);
  const Tensor& earlier_cu_seqlens() const;
  // As advance(), but returns the earlier steps of each row followed by the row's own: [joined_cu_seqlens()[rows], …].
  Tensor extend(const std::string& name, const Tensor& fresh);
  const Tensor& joined_cu_seqlens() const;

 private:
  MixerState& state_;
  std::shared_ptr<const StepHistoryPlan> plan_;
};

// The keys "k" and values "v" of a state, for attention in one decoding step. Growing tensors are enlarged to hold the step's tokens.
ops::AttentionCache attention_cache(MixerState& state, const Pass& pass);

}  // namespace based
