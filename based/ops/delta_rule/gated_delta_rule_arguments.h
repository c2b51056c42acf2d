// Without torch: the checks of the gated delta rule and the kernels' arguments, from tensors of LibTorch or of its stable interface. Inputs
// is a struct with the members of GatedDeltaRuleInputs.
#pragma once
#include "based/kernels/delta_rule/delta_rule.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Throws Error unless a gate has q's type, or the type of sums: the decays of a bf16 model need more digits than its activations.
template <class Tensor>
void check_delta_rule_gate(const char* op, const char* name, const Tensor& gate, const Tensor& q) {
  require(gate.scalar_type() == q.scalar_type() || gate.scalar_type() == sum_type(q), op, name, " must be ", type_name(q.scalar_type()),
          " or ", type_name(sum_type(q)), ", got ", type_name(gate.scalar_type()));
  require_device(op, name, gate, q);
}

// Shapes, types and devices. Throws Error.
template <class Inputs>
void check_delta_rule_inputs(const char* op, const Inputs& in) {
  const auto& [q, k, v, log_decay, beta, bonus, delta, scale] = in;
  require_floating(op, "q", q);
  require_shape(op, "q", q, {-1, -1, -1});
  require_like(op, "k", k, q);
  require_shape(op, "k", k, q.sizes());
  require_like(op, "v", v, q);
  require_shape(op, "v", v, {q.size(0), -1, -1});
  require(q.size(1) >= 1 && q.size(2) >= 1 && v.size(2) >= 1, op, "heads, key_dim and value_dim must be at least 1, got q ", shape_text(q),
          " and v ", shape_text(v));
  require(v.size(1) >= 1 && v.size(1) % q.size(1) == 0, op, "heads must be a multiple of key_heads ", q.size(1), ", got ", v.size(1));
  if (log_decay) {
    check_delta_rule_gate(op, "log_decay", *log_decay, q);
    if (log_decay->dim() == 3) {
      require_shape(op, "log_decay", *log_decay, {q.size(0), v.size(1), q.size(2)});
    } else {
      require_shape(op, "log_decay", *log_decay, {q.size(0), v.size(1)});
    }
  }
  if (beta) {
    check_delta_rule_gate(op, "beta", *beta, q);
    require_shape(op, "beta", *beta, {q.size(0), v.size(1)});
  }
  if (bonus) {
    check_delta_rule_gate(op, "bonus", *bonus, q);
    require_shape(op, "bonus", *bonus, {v.size(1), q.size(2)});
    require(!beta && !delta, op, "a bonus goes without beta and delta");
  }
}

// A state [slots, heads, key_dim, value_dim] in the type of sums; slots −1: any number.
template <class Inputs, class Tensor>
void check_delta_rule_state(const char* op, const char* name, const Tensor& state, int64_t slots, const Inputs& in) {
  require_type(op, name, state, sum_type(in.q));
  require_shape(op, name, state, {slots, in.v.size(1), in.q.size(2), in.v.size(2)});
}

// The sizes and options; one row a token, as in a step.
template <class Inputs>
kernels::GatedDeltaRule delta_rule_sizes(const Inputs& in) {
  kernels::GatedDeltaRule to;
  to.tokens = to.rows = in.q.size(0);
  to.key_heads = static_cast<int32_t>(in.q.size(1)), to.heads = static_cast<int32_t>(in.v.size(1));
  to.key_dim = static_cast<int32_t>(in.q.size(2)), to.value_dim = static_cast<int32_t>(in.v.size(2));
  to.decay_dim = in.log_decay && in.log_decay->dim() == 3 ? to.key_dim : 1;
  to.delta = in.delta;
  to.scale = static_cast<float>(in.scale);
  to.dtype = kernel_dtype(in.q);
  return to;
}

// The sizes, options and tensors, which are contiguous, with gates in fp32. The state is not set.
template <class Inputs, class Tensor>
kernels::GatedDeltaRule delta_rule_arguments(const Inputs& in, const Tensor& y) {
  const auto data = [](const auto& gate) { return gate ? static_cast<const float*>(gate->const_data_ptr()) : nullptr; };
  kernels::GatedDeltaRule to = delta_rule_sizes(in);
  to.q = in.q.const_data_ptr(), to.k = in.k.const_data_ptr(), to.v = in.v.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.log_decay = data(in.log_decay), to.beta = data(in.beta), to.bonus = data(in.bonus);
  return to;
}

// Whether a device's kernels compute the gradient of a call with these sizes, types and options.
template <class Inputs>
bool delta_rule_has_backward(const kernels::GatedDeltaRuleLaunchers& table, const Inputs& in) {
  if (table.has_backward == nullptr) return false;
  kernels::GatedDeltaRule sizes = delta_rule_sizes(in);
  const float some = 0;  // only whether a gate is given has an effect
  if (in.log_decay) sizes.log_decay = &some;
  if (in.beta) sizes.beta = &some;
  if (in.bonus) sizes.bonus = &some;
  return table.has_backward(sizes);
}

}  // namespace based::ops
