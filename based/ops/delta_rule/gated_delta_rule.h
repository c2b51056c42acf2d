// torch.ops.based_cpp.gated_delta_rule: linear attention whose state decays, with or without the delta rule's correction, for all rows of a
// packed batch at once. GLA, DeltaNet, Gated DeltaNet, Mamba-2 and RWKV are this recurrence with different gates.
#pragma once
#include <tuple>

#include "based/kernels/delta_rule/delta_rule.h"
#include "based/ops/delta_rule/gated_delta_rule_inputs.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// cu_seqlens int64 [rows + 1], initial_state [rows, heads, key_dim, value_dim], fp32 (fp64 for double inputs), zero where absent.
// log_decay, beta and bonus have q's type or the state's. Returns y [tokens, heads, value_dim] and the final state. Differentiable in every
// tensor. Throws Error naming operator, argument and value.
std::tuple<Tensor, Tensor> gated_delta_rule(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                            const OptionalTensor& initial_state = {});
// Token by token, any floating type.
std::tuple<Tensor, Tensor> gated_delta_rule_reference(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                      const OptionalTensor& initial_state = {});

// The same for rows that continue from slots of a state [slots, heads, key_dim, value_dim]: row r uses slots[r], and no slot occurs twice.
// Where gradients are on, it is differentiable and the state is replaced. Where they are off, and as the operator, the state is written in
// place.
Tensor gated_delta_rule_prefill(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);

// One token for each slot: q, k, v, log_decay, beta [rows, …]; the state is updated in place at `slots`. No gradients.
Tensor gated_delta_rule_step(const GatedDeltaRuleInputs& in, Tensor& state, const Tensor& slots);

// The operators.
struct GatedDeltaRule {
  GatedDeltaRuleInputs inputs;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_state;
  BASED_OPERATOR("gated_delta_rule -> y, state", inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta, inputs.bonus, inputs.delta,
                 inputs.scale, cu_seqlens, initial_state)
};
struct GatedDeltaRuleBackward {
  const Tensor& grad_y;
  const OptionalTensor& grad_state;
  GatedDeltaRule forward;
  BASED_OPERATOR("gated_delta_rule_backward -> grad_q, grad_k, grad_v, grad_log_decay, grad_beta, grad_bonus, grad_initial_state", grad_y,
                 grad_state, forward.inputs.q, forward.inputs.k, forward.inputs.v, forward.inputs.log_decay, forward.inputs.beta,
                 forward.inputs.bonus, forward.inputs.delta, forward.inputs.scale, forward.cu_seqlens, forward.initial_state)
};
struct GatedDeltaRulePrefill {
  GatedDeltaRuleInputs inputs;
  const Tensor& cu_seqlens;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("gated_delta_rule_prefill -> y", inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta, inputs.bonus, inputs.delta,
                 inputs.scale, cu_seqlens, written(state), slots)
};
struct GatedDeltaRuleStep {
  GatedDeltaRuleInputs inputs;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("gated_delta_rule_step -> y", inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta, inputs.bonus, inputs.delta,
                 inputs.scale, written(state), slots)
};

// The kernel's arguments for a step on contiguous tensors, gates in fp32. The tensors of a plan made without a device have no memory: their
// pointers are null.
kernels::GatedDeltaRule gated_delta_rule_step_arguments(const GatedDeltaRuleStep& in, const Tensor& y);

// Inside of based/ops.

void check_gated_delta_rule(const GatedDeltaRule& in);  // throws Error naming operator, argument and value
// Whether the device has a backward kernel for these arguments; else ATen differentiates its chunks.
bool has_gated_delta_rule_backward(const GatedDeltaRule& in);

}  // namespace based::ops
