#include "based/mixers/blocks/call.h"

#include "based/mixers/kit/rounds.h"

namespace based {

Tensor gated_delta_rule(const ops::GatedDeltaRuleInputs& in, const Call& call, const std::string& name) {
  if (call.state == nullptr) return std::get<0>(ops::gated_delta_rule(in, call.pass.cu_seqlens()));
  Tensor& state = (*call.state)[name];
  if (!call.step) return ops::gated_delta_rule_prefill(in, call.pass.cu_seqlens(), state, call.pass.slots());
  const auto recur = [&](const Pass& round, const Tensor& q, const Tensor& k, const Tensor& v, const ops::OptionalTensor& log_decay,
                         const ops::OptionalTensor& beta) {
    return ops::gated_delta_rule_step({q, k, v, log_decay, beta, in.bonus, in.delta, in.scale}, state, round.slots());
  };
  return step_in_rounds(call.pass, {state}, recur, in.q, in.k, in.v, in.log_decay, in.beta);
}

}  // namespace based
