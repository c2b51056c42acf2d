// What states keep time step by time step, wherever it lies: tensors [slots, capacity, …] that hold step p at p mod capacity, the latest
// `capacity` of them; such that grow with the sequence before they close (StateTensor::grows); or pages of a pool (StatePages).
#pragma once
#include <memory>
#include <string>

#include "based/mixers/pass.h"
#include "based/mixers/state.h"
#include "based/ops/attention_cache.h"
#include "based/ops/torch.h"

namespace based {

// The rows' past in one parallel pass. A tensor of a fixed capacity gives the capacity − 1 steps before a row's, which with its own are
// those that its tokens may see; one that grows gives all.
class Past {
 public:
  // Of the tensors that are kept as `like` is. They have room for the rows' steps afterwards; throws Error where a slot's pages have none.
  Past(MixerState& state, const Pass& pass, const std::string& like);

  // The earlier steps [earlier_cu_seqlens()[rows], …], oldest first, row by row. The state then holds `fresh`, the rows' own steps
  // [tokens, …], too: as new tensors where gradients are on, in place where they are off.
  Tensor advance(const std::string& name, const Tensor& fresh);
  const Tensor& earlier_cu_seqlens() const;
  // The same, with each row's own steps behind its earlier ones: [joined_cu_seqlens()[rows], …].
  Tensor extend(const std::string& name, const Tensor& fresh);
  const Tensor& joined_cu_seqlens() const;

 private:
  MixerState& state_;
  std::shared_ptr<const PastPlan> plan_;
};

// Keys "k" and values "v" of a state for one step, with room for its tokens.
ops::AttentionCache attention_cache(MixerState& state, const Pass& pass);

}  // namespace based
