#include "based/mixers/blocks/call.h"

namespace based {

Tensor gated_delta_rule(const ops::GatedDeltaRuleInputs& in, const Call& call, const std::string& name) {
  if (call.state == nullptr) return std::get<0>(ops::gated_delta_rule(in, call.pass.cu_seqlens()));
  Tensor& state = (*call.state)[name];
  return call.step ? ops::gated_delta_rule_step(in, state, call.pass.slots())
                   : ops::gated_delta_rule_prefill(in, call.pass.cu_seqlens(), state, call.pass.slots());
}

}  // namespace based
