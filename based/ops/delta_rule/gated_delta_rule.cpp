#include "based/ops/delta_rule/gated_delta_rule.h"

#include "based/ops/delta_rule/gated_delta_rule_arguments.h"
#include "based/ops/delta_rule/gated_delta_rule_bonus.h"
#include "based/ops/delta_rule/gated_delta_rule_forms.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"

namespace based::ops {
namespace {

using kernels::GatedDeltaRuleLaunchers;

// A state that is updated in place, for `rows` of its slots.
void check_slots(const char* op, const GatedDeltaRuleInputs& in, const Tensor& state, const Tensor& slots, int64_t rows) {
  check_delta_rule_state(op, "state", state, -1, in);
  require_state_slots(op, {state}, slots, rows);
}

void check(const GatedDeltaRule& in) {
  constexpr const char* op = "gated_delta_rule";
  check_delta_rule_inputs(op, in.inputs);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  if (in.initial_state) check_delta_rule_state(op, "initial_state", *in.initial_state, in.cu_seqlens.size(0) - 1, in.inputs);
}

void check(const GatedDeltaRulePrefill& in) {
  constexpr const char* op = "gated_delta_rule_prefill";
  check_delta_rule_inputs(op, in.inputs);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  check_slots(op, in.inputs, in.state, in.slots, in.cu_seqlens.size(0) - 1);
}

void check(const GatedDeltaRuleStep& in) {
  constexpr const char* op = "gated_delta_rule_step";
  check_delta_rule_inputs(op, in.inputs);
  check_slots(op, in.inputs, in.state, in.slots, in.inputs.q.size(0));
}

Result<GatedDeltaRule> forward_by_chunk(const GatedDeltaRule& in) {
  check(in);
  return gated_delta_rule_by_chunk(in.inputs, in.cu_seqlens, in.initial_state);
}

// Where a gradient is requested, ATen differentiates the chunks.
Result<GatedDeltaRule> forward_autograd(const GatedDeltaRule& in) {
  bool wanted = false;
  each_tensor(in, [&](std::string_view, const Tensor& tensor) { wanted = wanted || wants_gradient({tensor}); });
  if (wanted && !in.inputs.q.is_meta()) return forward_by_chunk(in);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

Result<GatedDeltaRule> forward_by_token(const GatedDeltaRule& in) {
  check(in);
  return gated_delta_rule_by_token(in.inputs, in.cu_seqlens, in.initial_state);
}

Result<GatedDeltaRule> forward_meta(const GatedDeltaRule& in) {
  check(in);
  const Tensor& v = in.inputs.v;
  return {at::empty(v.sizes(), v.options()),
          at::empty({in.cu_seqlens.size(0) - 1, v.size(1), in.inputs.q.size(2), v.size(2)}, v.options().dtype(sum_type(v)))};
}

Result<GatedDeltaRuleBackward> backward_reference(const GatedDeltaRuleBackward& in) {
  const auto& [inputs, cu_seqlens, initial_state] = in.forward;
  const auto function = [&inputs = inputs, &cu = cu_seqlens](const std::vector<Tensor>& x) {
    const auto [y, state] = forward_by_chunk(
        {{x[0], x[1], x[2], if_defined(x[3]), if_defined(x[4]), if_defined(x[5]), inputs.delta, inputs.scale}, cu, if_defined(x[6])});
    return std::vector<Tensor>{y, state};
  };
  const std::vector<Tensor> g =
      gradients_by_autograd(function,
                            {inputs.q, inputs.k, inputs.v, value_or_undefined(inputs.log_decay), value_or_undefined(inputs.beta),
                             value_or_undefined(inputs.bonus), value_or_undefined(initial_state)},
                            {in.grad_y, value_or_undefined(in.grad_state)});
  return {g[0], g[1], g[2], g[3], g[4], g[5], g[6]};
}

Result<GatedDeltaRuleBackward> backward_meta(const GatedDeltaRuleBackward& in) {
  check(in.forward);
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const auto like_if = [&](const OptionalTensor& x) { return x ? like(*x) : Tensor(); };
  const GatedDeltaRuleInputs& inputs = in.forward.inputs;
  return {like(inputs.q),
          like(inputs.k),
          like(inputs.v),
          like_if(inputs.log_decay),
          like_if(inputs.beta),
          like_if(inputs.bonus),
          like_if(in.forward.initial_state)};
}

Tensor prefill_by_chunk(const GatedDeltaRulePrefill& in) {
  check(in);
  const auto from_state = [&](const OptionalTensor& initial) { return gated_delta_rule_by_chunk(in.inputs, in.cu_seqlens, initial); };
  return prefill_slots(in.slots, from_state, in.state);
}

// Row by row: the order of additions must not depend on the other rows.
Tensor step_reference(const GatedDeltaRuleStep& in) {
  check(in);
  const GatedDeltaRuleInputs& inputs = in.inputs;
  const Tensor one = at::tensor({int64_t{0}, int64_t{1}}), y = at::empty(inputs.v.sizes(), inputs.v.options());
  for (int64_t row = 0; row < inputs.q.size(0); ++row) {
    const auto here = [&](const Tensor& x) { return x.narrow(0, row, 1); };
    const auto gate = [&](const OptionalTensor& x) { return x ? OptionalTensor(here(*x)) : std::nullopt; };
    const Tensor slot = in.state.narrow(0, in.slots[row].item<int64_t>(), 1);
    const auto [y_of_row, last] = gated_delta_rule_by_token({here(inputs.q), here(inputs.k), here(inputs.v), gate(inputs.log_decay),
                                                             gate(inputs.beta), inputs.bonus, inputs.delta, inputs.scale},
                                                            one, slot);
    here(y).copy_(y_of_row);
    slot.copy_(last);
  }
  return y;
}

// Memory of a launch, kept until it has been queued.
struct GatedDeltaRuleLaunch {
  GatedDeltaRuleInputs inputs;
  Tensor y;
  kernels::GatedDeltaRule arguments;
};

GatedDeltaRuleLaunch prepare(const GatedDeltaRuleInputs& inputs) {
  const auto in_fp32 = [](const OptionalTensor& gate) { return gate ? OptionalTensor(gate->to(at::kFloat).contiguous()) : std::nullopt; };
  GatedDeltaRuleLaunch launch{{inputs.q.contiguous(), inputs.k.contiguous(), inputs.v.contiguous(), in_fp32(inputs.log_decay),
                               in_fp32(inputs.beta), in_fp32(inputs.bonus), inputs.delta, inputs.scale},
                              at::empty(inputs.v.sizes(), inputs.v.options()),
                              {}};
  launch.arguments = delta_rule_arguments(launch.inputs, launch.y);
  return launch;
}

const GatedDeltaRuleLaunchers* launchers_of_rule(const char* op, const GatedDeltaRuleInputs& in) {
  return launchers_for<GatedDeltaRuleLaunchers>(op, in.q, in.q.dim() == 3 && in.q.size(2) <= kernels::gated_delta_rule_max_key_dim);
}
// The same for whole rows, which the CPU has no kernel for.
const GatedDeltaRuleLaunchers* launchers_of_rows(const char* op, const GatedDeltaRuleInputs& in) {
  const GatedDeltaRuleLaunchers* table = launchers_of_rule(op, in);
  return table != nullptr && table->forward != nullptr ? table : nullptr;
}

// y; `state` is updated in place. Row r uses the state of its slot; where `slots` is null, state r.
Tensor advance(const GatedDeltaRuleLaunchers& table, const GatedDeltaRuleInputs& inputs, const Tensor& cu_seqlens, const Tensor& state,
               const int64_t* slots) {
  check_row_starts("gated_delta_rule", "cu_seqlens", cu_seqlens, inputs.q.size(0));
  GatedDeltaRuleLaunch launch = prepare(inputs);
  const Tensor starts = cu_seqlens.contiguous();
  kernels::GatedDeltaRule& to = launch.arguments;
  to.state = state.mutable_data_ptr<float>();
  to.slot = slots;
  to.row_start = starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens.size(0) - 1;
  const Tensor scratch = scratch_memory(table.forward_scratch(to), inputs.q);
  require_ok(table.forward(to, scratch.mutable_data_ptr(), queue_of(inputs.q)));
  return launch.y;
}

Result<GatedDeltaRule> forward(const GatedDeltaRule& in) {
  const GatedDeltaRuleLaunchers* table = launchers_of_rows("gated_delta_rule", in.inputs);
  if (table == nullptr) return forward_by_chunk(in);
  check(in);
  const Tensor& v = in.inputs.v;
  const Tensor state =
      in.initial_state ? in.initial_state->clone(at::MemoryFormat::Contiguous)
                       : at::zeros({in.cu_seqlens.size(0) - 1, v.size(1), in.inputs.q.size(2), v.size(2)}, v.options().dtype(at::kFloat));
  return {advance(*table, in.inputs, in.cu_seqlens, state, nullptr), state};
}

Result<GatedDeltaRuleBackward> backward(const GatedDeltaRuleBackward& in) {
  const auto& [inputs, cu_seqlens, initial_state] = in.forward;
  if (inputs.bonus && inputs.q.size(0) > 0 && has_gated_delta_rule_backward(in.forward)) {
    check(in.forward);
    return gated_delta_rule_gradient_with_bonus(in, [](const GatedDeltaRuleBackward& without) { return backward(without); });
  }
  const GatedDeltaRuleLaunchers* table = launchers_for<GatedDeltaRuleLaunchers>("gated_delta_rule_backward", inputs.q,
                                                                                !inputs.bonus && has_gated_delta_rule_backward(in.forward));
  if (table == nullptr) return backward_reference(in);
  check(in.forward);
  check_row_starts("gated_delta_rule", "cu_seqlens", cu_seqlens, inputs.q.size(0));
  GatedDeltaRuleLaunch launch = prepare(inputs);
  const int64_t rows = cu_seqlens.size(0) - 1, tokens = inputs.q.size(0), heads = inputs.v.size(1), key_heads = inputs.q.size(1);
  const at::TensorOptions sums = inputs.q.options().dtype(at::kFloat);
  const Tensor starts = cu_seqlens.contiguous(), grad_y = in.grad_y.contiguous();
  const Tensor grad_state = in.grad_state ? in.grad_state->contiguous() : Tensor();
  const Tensor state = initial_state ? initial_state->clone(at::MemoryFormat::Contiguous)
                                     : at::zeros({rows, heads, inputs.q.size(2), inputs.v.size(2)}, sums);
  Tensor grad_q = at::empty({tokens, heads, inputs.q.size(2)}, inputs.q.options()), grad_k = at::empty_like(grad_q);
  const Tensor grad_v = launch.y;  // the backward writes no y
  const auto empty_like = [](const OptionalTensor& gate) { return gate ? at::empty_like(*gate) : Tensor(); };
  const Tensor grad_log_decay = empty_like(launch.inputs.log_decay), grad_beta = empty_like(launch.inputs.beta);
  const Tensor grad_initial = initial_state ? at::empty_like(state) : Tensor();
  const auto data = [](const Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; };
  kernels::GatedDeltaRuleBackward to;
  to.forward = launch.arguments;
  to.forward.rows = rows, to.forward.row_start = starts.const_data_ptr<int64_t>(), to.forward.state = data(state);
  to.grad_y = grad_y.const_data_ptr();
  if (in.grad_state) to.grad_state = grad_state.const_data_ptr<float>();
  to.grad_q = grad_q.mutable_data_ptr(), to.grad_k = grad_k.mutable_data_ptr(), to.grad_v = grad_v.mutable_data_ptr();
  to.grad_log_decay = data(grad_log_decay), to.grad_beta = data(grad_beta), to.grad_initial_state = data(grad_initial);
  const Tensor scratch = scratch_memory(table->backward_scratch(to), inputs.q);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(inputs.q)));
  return {sum_to_key_heads(grad_q, key_heads),
          sum_to_key_heads(grad_k, key_heads),
          grad_v,
          inputs.log_decay ? grad_log_decay.to(inputs.log_decay->scalar_type()) : Tensor(),
          inputs.beta ? grad_beta.to(inputs.beta->scalar_type()) : Tensor(),
          Tensor(),
          grad_initial};
}

Tensor prefill(const GatedDeltaRulePrefill& in) {
  const GatedDeltaRuleLaunchers* table = launchers_of_rows("gated_delta_rule_prefill", in.inputs);
  if (table == nullptr) return prefill_by_chunk(in);
  check(in);
  const Tensor slots = in.slots.contiguous();
  return advance(*table, in.inputs, in.cu_seqlens, in.state, slots.const_data_ptr<int64_t>());
}

Tensor step(const GatedDeltaRuleStep& in) {
  const GatedDeltaRuleLaunchers* table = launchers_of_rule("gated_delta_rule_step", in.inputs);
  if (table == nullptr) return step_reference(in);
  check(in);
  const GatedDeltaRuleLaunch launch = prepare(in.inputs);
  const Tensor slots = in.slots.contiguous();
  require_ok(table->step(gated_delta_rule_step_arguments({launch.inputs, in.state, slots}, launch.y), queue_of(in.inputs.q)));
  return launch.y;
}

template <class Op>
Tensor gated_delta_rule_like_v(const Op& in) {
  check(in);
  return at::empty(in.inputs.v.sizes(), in.inputs.v.options());
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<GatedDeltaRule>(m)
      .reference<forward_by_chunk>()
      .meta<forward_meta>()
      .kernel<forward>()
      .autograd<forward_autograd>()
      .named_reference<forward_by_token>();
  define<GatedDeltaRuleBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
  define<GatedDeltaRulePrefill>(m)
      .reference<prefill_by_chunk>()
      .meta<gated_delta_rule_like_v<GatedDeltaRulePrefill>>()
      .kernel<prefill>()
      .without_gradient();
  define<GatedDeltaRuleStep>(m)
      .reference<step_reference>()
      .meta<gated_delta_rule_like_v<GatedDeltaRuleStep>>()
      .kernel<step>()
      .without_gradient();
}

}  // namespace

void check_gated_delta_rule(const GatedDeltaRule& in) { check(in); }

bool has_gated_delta_rule_backward(const GatedDeltaRule& in) {
  const GatedDeltaRuleLaunchers* table = launchers_of<GatedDeltaRuleLaunchers>(in.inputs.q);
  GatedDeltaRuleInputs without_bonus = in.inputs;
  without_bonus.bonus = std::nullopt;
  return table != nullptr && delta_rule_has_backward(*table, without_bonus);
}

kernels::GatedDeltaRule gated_delta_rule_step_arguments(const GatedDeltaRuleStep& in, const Tensor& y) {
  kernels::GatedDeltaRule to = delta_rule_arguments(in.inputs, y);
  to.state = static_cast<float*>(in.state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(in.slots.const_data_ptr());
  return to;
}

std::tuple<Tensor, Tensor> gated_delta_rule(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  return call(GatedDeltaRule{in, cu_seqlens, initial_state});
}

std::tuple<Tensor, Tensor> gated_delta_rule_reference(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                      const OptionalTensor& initial_state) {
  return forward_by_token({in, cu_seqlens, initial_state});
}

Tensor gated_delta_rule_prefill(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  if (!at::GradMode::is_enabled()) return call(GatedDeltaRulePrefill{in, cu_seqlens, state, slots});
  const auto from_state = [&](const OptionalTensor& initial) { return gated_delta_rule(in, cu_seqlens, initial); };
  return prefill_slots_with_gradient(slots, from_state, state);
}

Tensor gated_delta_rule_step(const GatedDeltaRuleInputs& in, Tensor& state, const Tensor& slots) {
  return call(GatedDeltaRuleStep{in, state, slots});
}

}  // namespace based::ops
