// Mixers made of blocks: one function for the three forms, since each block has the three forms itself.
#pragma once
#include <string>

#include "based/mixers/mixer.h"
#include "based/ops/gated_delta_rule.h"

namespace based {

// A call of such a mixer.
struct Call {
  const Pass& pass;
  MixerState* state = nullptr;  // null: every row from zero, and no state is left
  bool step = false;            // one token for each slot
};

class BlockMixer : public Mixer {
 public:
  Tensor forward(const Tensor& x, const Pass& pass) final { return run(x, {pass}); }
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) final { return run(x, {pass, &state}); }
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) final { return run(x, {pass, &state, true}); }

 protected:
  virtual Tensor run(const Tensor& x, const Call& call) = 0;
};

// The form of ops::gated_delta_rule that the call is, on the state of this name, [slots, heads, key_dim, value_dim] with sum_options.
Tensor gated_delta_rule(const ops::GatedDeltaRuleInputs& in, const Call& call, const std::string& name);

}  // namespace based
