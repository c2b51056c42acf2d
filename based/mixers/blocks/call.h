// Mixers composed of blocks. Each block has the three forms forward, prefill and step, so that one function of the mixer covers all of
// them.
#pragma once
#include <string>

#include "based/mixers/kit/mixer.h"
#include "based/ops/delta_rule/gated_delta_rule.h"

namespace based {

// One call of such a mixer in any of the three forms.
struct Call {
  const Pass& pass;
  MixerState* state = nullptr;  // null for forward: every row starts from zero and the final state is discarded
  bool step = false;            // one token per slot
};

class BlockMixer : public Mixer {
 public:
  Tensor forward(const Tensor& x, const Pass& pass) final { return run(x, {pass}); }
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) final { return run(x, {pass, &state}); }
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) final { return run(x, {pass, &state, true}); }
  bool steps_in_rounds() const final { return true; }

 protected:
  // In a step, `call.pass` may have several rounds: recurrences run by step_in_rounds().
  virtual Tensor run(const Tensor& x, const Call& call) = 0;
};

// Calls the form of ops::gated_delta_rule that matches `call`. Its state is the tensor `name` [slots, heads, key_dim, value_dim] with
// sum_options.
Tensor gated_delta_rule(const ops::GatedDeltaRuleInputs& in, const Call& call, const std::string& name);

}  // namespace based
