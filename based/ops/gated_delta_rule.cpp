#include "based/ops/gated_delta_rule.h"

#include "based/ops/gated_delta_rule_forms.h"
#include "based/ops/rows.h"

namespace based::ops {
namespace {

// A gate's factors: of q's type, or of the sums' (the decays of a bf16 model are worth more digits than its activations).
void check_gate(const char* op, const char* name, const Tensor& gate, const Tensor& q) {
  require(gate.scalar_type() == q.scalar_type() || gate.scalar_type() == sum_type(q), op, name, " must be ", q.scalar_type(), " or ",
          sum_type(q), ", got ", gate.scalar_type());
  require(gate.device() == q.device(), op, name, " must be on ", q.device(), ", got ", gate.device());
}

void check_inputs(const char* op, const GatedDeltaRuleInputs& in) {
  const auto& [q, k, v, log_decay, beta, bonus, delta, scale] = in;
  require(at::isFloatingType(q.scalar_type()), op, "q must be floating, got ", q.scalar_type());
  require_shape(op, "q", q, {-1, -1, -1});
  require_like(op, "k", k, q);
  require_shape(op, "k", k, q.sizes());
  require_like(op, "v", v, q);
  require_shape(op, "v", v, {q.size(0), -1, -1});
  require(q.size(1) >= 1 && q.size(2) >= 1 && v.size(2) >= 1, op, "heads, key_dim and value_dim must be at least 1, got q ", q.sizes(),
          " and v ", v.sizes());
  require(v.size(1) >= 1 && v.size(1) % q.size(1) == 0, op, "heads must be a multiple of key_heads ", q.size(1), ", got ", v.size(1));
  if (log_decay) {
    check_gate(op, "log_decay", *log_decay, q);
    if (log_decay->dim() == 3) {
      require_shape(op, "log_decay", *log_decay, {q.size(0), v.size(1), q.size(2)});
    } else {
      require_shape(op, "log_decay", *log_decay, {q.size(0), v.size(1)});
    }
  }
  if (beta) {
    check_gate(op, "beta", *beta, q);
    require_shape(op, "beta", *beta, {q.size(0), v.size(1)});
  }
  if (bonus) {
    check_gate(op, "bonus", *bonus, q);
    require_shape(op, "bonus", *bonus, {v.size(1), q.size(2)});
    require(!beta && !delta, op, "a bonus goes without beta and delta");
  }
}

void check_state(const char* op, const char* name, const Tensor& state, int64_t slots, const GatedDeltaRuleInputs& in) {
  require_type(op, name, state, sum_type(in.q));
  require_shape(op, name, state, {slots, in.v.size(1), in.q.size(2), in.v.size(2)});
}

void check_rows(const char* op, const Tensor& cu_seqlens) {
  require_type(op, "cu_seqlens", cu_seqlens, at::kLong);
  require_shape(op, "cu_seqlens", cu_seqlens, {-1});
  require(cu_seqlens.size(0) >= 1, op, "cu_seqlens must have one entry more than rows, got ", cu_seqlens.sizes());
}

// A state that is updated in place, for `rows` of its slots.
void check_slots(const char* op, const GatedDeltaRuleInputs& in, const Tensor& state, const Tensor& slots, int64_t rows) {
  check_state(op, "state", state, -1, in);
  require(state.is_contiguous(), op, "the state must be contiguous");
  require_slots(op, slots, rows, state.size(0));
}

void check(const GatedDeltaRule& in) {
  constexpr const char* op = "gated_delta_rule";
  check_inputs(op, in.of);
  check_rows(op, in.cu_seqlens);
  if (in.initial_state) check_state(op, "initial_state", *in.initial_state, in.cu_seqlens.size(0) - 1, in.of);
}

void check(const GatedDeltaRulePrefill& in) {
  constexpr const char* op = "gated_delta_rule_prefill";
  check_inputs(op, in.of);
  check_rows(op, in.cu_seqlens);
  check_slots(op, in.of, in.state, in.slots, in.cu_seqlens.size(0) - 1);
}

void check(const GatedDeltaRuleStep& in) {
  constexpr const char* op = "gated_delta_rule_step";
  check_inputs(op, in.of);
  check_slots(op, in.of, in.state, in.slots, in.of.q.size(0));
}

Result<GatedDeltaRule> forward(const GatedDeltaRule& in) {
  check(in);
  return gated_delta_rule_by_chunk(in);
}

Result<GatedDeltaRule> forward_by_token(const GatedDeltaRule& in) {
  check(in);
  return gated_delta_rule_by_token(in);
}

Result<GatedDeltaRule> forward_meta(const GatedDeltaRule& in) {
  check(in);
  const Tensor& v = in.of.v;
  return {at::empty(v.sizes(), v.options()),
          at::empty({in.cu_seqlens.size(0) - 1, v.size(1), in.of.q.size(2), v.size(2)}, v.options().dtype(sum_type(v)))};
}

Tensor prefill(const GatedDeltaRulePrefill& in) {
  check(in);
  const auto [y, last] = gated_delta_rule_by_chunk({in.of, in.cu_seqlens, in.state.index_select(0, in.slots)});
  in.state.index_copy_(0, in.slots, last);
  return y;
}

// Row by row: the order of additions must not depend on the other rows.
Tensor step_reference(const GatedDeltaRuleStep& in) {
  check(in);
  const GatedDeltaRuleInputs& of = in.of;
  const Tensor one = at::tensor({int64_t{0}, int64_t{1}}), y = at::empty(of.v.sizes(), of.v.options());
  for (int64_t row = 0; row < of.q.size(0); ++row) {
    const auto here = [&](const Tensor& x) { return x.narrow(0, row, 1); };
    const auto gate = [&](const OptionalTensor& x) { return x ? OptionalTensor(here(*x)) : std::nullopt; };
    const Tensor slot = in.state.narrow(0, in.slots[row].item<int64_t>(), 1);
    const auto [y_of_row, last] = gated_delta_rule_by_token(
        {{here(of.q), here(of.k), here(of.v), gate(of.log_decay), gate(of.beta), of.bonus, of.delta, of.scale}, one, slot});
    here(y).copy_(y_of_row);
    slot.copy_(last);
  }
  return y;
}

}  // namespace

Tensor gated_delta_rule_step_with(const GatedDeltaRuleKernels& table, const GatedDeltaRuleStep& in) {
  const GatedDeltaRuleInputs& of = in.of;
  if (!uses_kernel("gated_delta_rule_step", of.q, of.q.size(-1) <= kernels::gated_delta_rule_max_key_dim)) return step_reference(in);
  check(in);
  const Tensor q = of.q.contiguous(), k = of.k.contiguous(), v = of.v.contiguous(), slots = in.slots.contiguous();
  const auto in_fp32 = [](const OptionalTensor& gate) { return gate ? gate->to(at::kFloat).contiguous() : Tensor(); };
  const Tensor log_decay = in_fp32(of.log_decay), beta = in_fp32(of.beta), bonus = in_fp32(of.bonus);
  const Tensor y = at::empty(v.sizes(), v.options());
  const auto data = [](const Tensor& gate) { return gate.defined() ? gate.const_data_ptr<float>() : nullptr; };
  kernels::GatedDeltaRuleStep to;
  to.q = q.const_data_ptr(), to.k = k.const_data_ptr(), to.v = v.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.log_decay = data(log_decay), to.beta = data(beta), to.bonus = data(bonus);
  to.state = in.state.mutable_data_ptr<float>();
  to.slot = slots.const_data_ptr<int64_t>();
  to.rows = q.size(0);
  to.key_heads = static_cast<int32_t>(q.size(1)), to.heads = static_cast<int32_t>(v.size(1));
  to.key_dim = static_cast<int32_t>(q.size(2)), to.value_dim = static_cast<int32_t>(v.size(2));
  to.decay_dim = log_decay.defined() && log_decay.dim() == 3 ? to.key_dim : 1;
  to.delta = of.delta;
  to.scale = static_cast<float>(of.scale);
  to.dtype = kernel_dtype(q);
  require_ok(table.step(to));
  return y;
}

namespace {

template <class Op>
Tensor like_v(const Op& in) {
  check(in);
  return at::empty(in.of.v.sizes(), in.of.v.options());
}

const GatedDeltaRuleKernels kCpu{kernels::cpu::gated_delta_rule_step};

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<GatedDeltaRule>(m).composite<forward>().meta<forward_meta>().named_reference<forward_by_token>();
  define<GatedDeltaRulePrefill>(m).reference<prefill>().meta<like_v<GatedDeltaRulePrefill>>().without_gradient();
  define<GatedDeltaRuleStep>(m)
      .reference<step_reference>()
      .meta<like_v<GatedDeltaRuleStep>>()
      .cpu<[](const GatedDeltaRuleStep& in) { return gated_delta_rule_step_with(kCpu, in); }>()
      .without_gradient();
}

}  // namespace

std::tuple<Tensor, Tensor> gated_delta_rule(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  return call(GatedDeltaRule{in, cu_seqlens, initial_state});
}

std::tuple<Tensor, Tensor> gated_delta_rule_reference(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                      const OptionalTensor& initial_state) {
  return forward_by_token({in, cu_seqlens, initial_state});
}

Tensor gated_delta_rule_prefill(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  if (!at::GradMode::is_enabled()) return call(GatedDeltaRulePrefill{in, cu_seqlens, state, slots});
  const auto [y, last] = gated_delta_rule(in, cu_seqlens, state.index_select(0, slots));
  write_rows(state, slots, last);
  return y;
}

Tensor gated_delta_rule_step(const GatedDeltaRuleInputs& in, Tensor& state, const Tensor& slots) {
  return call(GatedDeltaRuleStep{in, state, slots});
}

}  // namespace based::ops
