// torch.ops.based.gated_delta_rule: linear attention whose state decays and may correct what it holds, all rows of a packed batch at once.
// GLA, DeltaNet, Gated DeltaNet, Mamba-2 and RWKV are this with other gates.
#pragma once
#include <tuple>

#include "based/kernels/gated_delta_rule.h"
#include "based/ops/operator.h"

namespace based::ops {

// For a head and token t:  D = diag(exp(log_decay_t)) S_{t−1},  S_t = D + k_t (beta_t (v_t − Dᵀk_t))ᵀ with `delta`, else D + k_t (beta_t
// v_t)ᵀ; y_t = scale · S_tᵀq_t, and with a bonus u, which goes without beta and delta, y_t = scale · (S_{t−1}ᵀq_t + (q_t · u⊙k_t) v_t).
struct GatedDeltaRuleInputs {
  Tensor q, k;                    // [tokens, key_heads, key_dim]; head h of heads reads those of h · key_heads / heads
  Tensor v;                       // [tokens, heads, value_dim], of q's type
  OptionalTensor log_decay = {};  // [tokens, heads] or [tokens, heads, key_dim], none above 0; absent: no decay
  OptionalTensor beta = {};       // [tokens, heads]; absent: 1
  OptionalTensor bonus = {};      // [heads, key_dim]
  bool delta = false;
  double scale = 1;
};

// cu_seqlens int64 [rows + 1], initial_state [rows, heads, key_dim, value_dim], fp32 (fp64 for double inputs), zero where absent.
// log_decay, beta and bonus have q's type or the state's. Returns y [tokens, heads, value_dim] and the final state. Differentiable in every
// tensor. Throws Error naming operator, argument and value.
std::tuple<Tensor, Tensor> gated_delta_rule(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                            const OptionalTensor& initial_state = {});
// Token by token, any floating type.
std::tuple<Tensor, Tensor> gated_delta_rule_reference(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                      const OptionalTensor& initial_state = {});

// The same for rows that go on from slots of a state [slots, heads, key_dim, value_dim]: row r's is that of slots[r], none twice. Where
// gradients are on, it is differentiable and the state is replaced; where they are off, and as the operator, it is written in place.
Tensor gated_delta_rule_prefill(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);

// One token for each slot: q, k, v, log_decay, beta [rows, …]; the state is updated in place at `slots`. No gradients.
Tensor gated_delta_rule_step(const GatedDeltaRuleInputs& in, Tensor& state, const Tensor& slots);

// The operators.
struct GatedDeltaRule {
  GatedDeltaRuleInputs of;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_state;
  BASED_OPERATOR("gated_delta_rule -> y, state", of.q, of.k, of.v, of.log_decay, of.beta, of.bonus, of.delta, of.scale, cu_seqlens,
                 initial_state)
};
struct GatedDeltaRuleBackward {
  const Tensor& grad_y;
  const OptionalTensor& grad_state;
  GatedDeltaRule forward;
  BASED_OPERATOR("gated_delta_rule_backward -> grad_q, grad_k, grad_v, grad_log_decay, grad_beta, grad_bonus, grad_initial_state", grad_y,
                 grad_state, forward.of.q, forward.of.k, forward.of.v, forward.of.log_decay, forward.of.beta, forward.of.bonus,
                 forward.of.delta, forward.of.scale, forward.cu_seqlens, forward.initial_state)
};
struct GatedDeltaRulePrefill {
  GatedDeltaRuleInputs of;
  const Tensor& cu_seqlens;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("gated_delta_rule_prefill -> y", of.q, of.k, of.v, of.log_decay, of.beta, of.bonus, of.delta, of.scale, cu_seqlens,
                 written(state), slots)
};
struct GatedDeltaRuleStep {
  GatedDeltaRuleInputs of;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("gated_delta_rule_step -> y", of.q, of.k, of.v, of.log_decay, of.beta, of.bonus, of.delta, of.scale, written(state), slots)
};

// What a step's kernel is told of contiguous tensors, gates in fp32. A plan that is made without a device has tensors without memory.
kernels::GatedDeltaRule gated_delta_rule_step_arguments(const GatedDeltaRuleStep& in, const Tensor& y);

// Them with a device's kernels; the ATen forms run for types and sizes without.
struct GatedDeltaRuleKernels {
  kernels::Status (*step)(const kernels::GatedDeltaRule&);
  int64_t (*forward_scratch)(const kernels::GatedDeltaRule&) = nullptr;
  kernels::Status (*forward)(const kernels::GatedDeltaRule&, void* scratch) = nullptr;
  bool (*has_backward)(const kernels::GatedDeltaRule&) = nullptr;
  int64_t (*backward_scratch)(const kernels::GatedDeltaRuleBackward&) = nullptr;
  kernels::Status (*backward)(const kernels::GatedDeltaRuleBackward&, void* scratch) = nullptr;
};
void check_gated_delta_rule(const GatedDeltaRule& in);  // throws Error naming operator, argument and value
// Whether the device has a backward for these arguments; else ATen differentiates its chunks.
bool has_gated_delta_rule_backward(const GatedDeltaRuleKernels& table, const GatedDeltaRule& in);
Result<GatedDeltaRule> gated_delta_rule_with(const GatedDeltaRuleKernels& table, const GatedDeltaRule& in);
Result<GatedDeltaRuleBackward> gated_delta_rule_backward_with(const GatedDeltaRuleKernels& table, const GatedDeltaRuleBackward& in);
Tensor gated_delta_rule_prefill_with(const GatedDeltaRuleKernels& table, const GatedDeltaRulePrefill& in);
Tensor gated_delta_rule_step_with(const GatedDeltaRuleKernels& table, const GatedDeltaRuleStep& in);

}  // namespace based::ops
