#include "based/ops/gated_delta_rule.h"

#include "based/ops/gated_delta_rule_forms.h"
#include "based/ops/recompute.h"
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

// Where a gradient is asked for, ATen differentiates the chunks.
Result<GatedDeltaRule> forward_autograd(const GatedDeltaRule& in) {
  bool wanted = false;
  each_tensor(in, [&](std::string_view, const Tensor& tensor) { wanted = wanted || wants_gradient({tensor}); });
  if (wanted && !in.of.q.is_meta()) return forward(in);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
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

Result<GatedDeltaRuleBackward> backward_reference(const GatedDeltaRuleBackward& in) {
  const GatedDeltaRule& forward_of = in.forward;
  const GatedDeltaRuleInputs& of = forward_of.of;
  const auto function = [&](const std::vector<Tensor>& x) {
    const auto [y, state] = forward({{x[0], x[1], x[2], if_defined(x[3]), if_defined(x[4]), if_defined(x[5]), of.delta, of.scale},
                                     forward_of.cu_seqlens,
                                     if_defined(x[6])});
    return std::vector<Tensor>{y, state};
  };
  const std::vector<Tensor> g = gradients_by_autograd(function,
                                                      {of.q, of.k, of.v, value_or_undefined(of.log_decay), value_or_undefined(of.beta),
                                                       value_or_undefined(of.bonus), value_or_undefined(forward_of.initial_state)},
                                                      {in.grad_y, value_or_undefined(in.grad_state)});
  return {g[0], g[1], g[2], g[3], g[4], g[5], g[6]};
}

Result<GatedDeltaRuleBackward> backward_meta(const GatedDeltaRuleBackward& in) {
  check(in.forward);
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const auto like_if = [&](const OptionalTensor& x) { return x ? like(*x) : Tensor(); };
  const GatedDeltaRuleInputs& of = in.forward.of;
  return {
      like(of.q), like(of.k), like(of.v), like_if(of.log_decay), like_if(of.beta), like_if(of.bonus), like_if(in.forward.initial_state)};
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

namespace {

// Memory of a launch, kept until it is over.
struct Launch {
  GatedDeltaRuleInputs inputs;
  Tensor y;
  kernels::GatedDeltaRule arguments;
};

void set_sizes(const GatedDeltaRuleInputs& of, kernels::GatedDeltaRule& to) {
  to.tokens = to.rows = of.q.size(0);
  to.key_heads = static_cast<int32_t>(of.q.size(1)), to.heads = static_cast<int32_t>(of.v.size(1));
  to.key_dim = static_cast<int32_t>(of.q.size(2)), to.value_dim = static_cast<int32_t>(of.v.size(2));
  to.decay_dim = of.log_decay && of.log_decay->dim() == 3 ? to.key_dim : 1;
  to.delta = of.delta;
  to.scale = static_cast<float>(of.scale);
  to.dtype = kernel_dtype(of.q);
}

// Of contiguous tensors, gates in fp32.
kernels::GatedDeltaRule arguments_of(const GatedDeltaRuleInputs& of, const Tensor& y) {
  const auto data = [](const OptionalTensor& gate) { return gate ? static_cast<const float*>(gate->const_data_ptr()) : nullptr; };
  kernels::GatedDeltaRule to;
  to.q = of.q.const_data_ptr(), to.k = of.k.const_data_ptr(), to.v = of.v.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.log_decay = data(of.log_decay), to.beta = data(of.beta), to.bonus = data(of.bonus);
  set_sizes(of, to);
  return to;
}

Launch prepare(const GatedDeltaRuleInputs& of) {
  const auto in_fp32 = [](const OptionalTensor& gate) { return gate ? OptionalTensor(gate->to(at::kFloat).contiguous()) : std::nullopt; };
  Launch launch{{of.q.contiguous(), of.k.contiguous(), of.v.contiguous(), in_fp32(of.log_decay), in_fp32(of.beta), in_fp32(of.bonus),
                 of.delta, of.scale},
                at::empty(of.v.sizes(), of.v.options()),
                {}};
  launch.arguments = arguments_of(launch.inputs, launch.y);
  return launch;
}

bool uses_kernel_for(const char* op, const GatedDeltaRuleInputs& of) {
  return uses_kernel(op, of.q, of.q.size(-1) <= kernels::gated_delta_rule_max_key_dim);
}

// y; `state` is updated in place: a row's is that of its slot, or where `slots` is null, of its number.
Tensor advance(const GatedDeltaRuleKernels& table, const GatedDeltaRuleInputs& of, const Tensor& cu_seqlens, const Tensor& state,
               const int64_t* slots) {
  check_row_starts("gated_delta_rule", "cu_seqlens", cu_seqlens, of.q.size(0));
  Launch launch = prepare(of);
  const Tensor starts = cu_seqlens.contiguous();
  kernels::GatedDeltaRule& to = launch.arguments;
  to.state = state.mutable_data_ptr<float>();
  to.slot = slots;
  to.row_start = starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens.size(0) - 1;
  const Tensor scratch = scratch_memory(table.forward_scratch(to), of.q);
  require_ok(table.forward(to, scratch.mutable_data_ptr()));
  return launch.y;
}

}  // namespace

Result<GatedDeltaRule> gated_delta_rule_with(const GatedDeltaRuleKernels& table, const GatedDeltaRule& in) {
  if (!uses_kernel_for("gated_delta_rule", in.of)) return forward(in);
  check(in);
  const Tensor& v = in.of.v;
  const Tensor state = in.initial_state
                           ? in.initial_state->clone(at::MemoryFormat::Contiguous)
                           : at::zeros({in.cu_seqlens.size(0) - 1, v.size(1), in.of.q.size(2), v.size(2)}, v.options().dtype(at::kFloat));
  return {advance(table, in.of, in.cu_seqlens, state, nullptr), state};
}

void check_gated_delta_rule(const GatedDeltaRule& in) { check(in); }

bool has_gated_delta_rule_backward(const GatedDeltaRuleKernels& table, const GatedDeltaRule& in) {
  const GatedDeltaRuleInputs& of = in.of;
  if (!has_kernel(of.q)) return false;
  kernels::GatedDeltaRule sizes;
  set_sizes(of, sizes);
  const float some = 0;
  if (of.log_decay) sizes.log_decay = &some;
  if (of.beta) sizes.beta = &some;
  if (of.bonus) sizes.bonus = &some;
  return table.has_backward(sizes);
}

Result<GatedDeltaRuleBackward> gated_delta_rule_backward_with(const GatedDeltaRuleKernels& table, const GatedDeltaRuleBackward& in) {
  const auto& [of, cu_seqlens, initial_state] = in.forward;
  if (!uses_kernel("gated_delta_rule_backward", of.q, has_gated_delta_rule_backward(table, in.forward))) return backward_reference(in);
  check(in.forward);
  check_row_starts("gated_delta_rule", "cu_seqlens", cu_seqlens, of.q.size(0));
  Launch launch = prepare(of);
  const int64_t rows = cu_seqlens.size(0) - 1, tokens = of.q.size(0), heads = of.v.size(1), key_heads = of.q.size(1);
  const at::TensorOptions sums = of.q.options().dtype(at::kFloat);
  const Tensor starts = cu_seqlens.contiguous(), grad_y = in.grad_y.contiguous();
  const Tensor grad_state = in.grad_state ? in.grad_state->contiguous() : Tensor();
  const Tensor state =
      initial_state ? initial_state->clone(at::MemoryFormat::Contiguous) : at::zeros({rows, heads, of.q.size(2), of.v.size(2)}, sums);
  Tensor grad_q = at::empty({tokens, heads, of.q.size(2)}, of.q.options()), grad_k = at::empty_like(grad_q);
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
  const Tensor scratch = scratch_memory(table.backward_scratch(to), of.q);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  const auto of_key_heads = [&](const Tensor& grad) {
    if (heads == key_heads) return grad;
    return grad.view({tokens, key_heads, heads / key_heads, grad.size(2)}).sum(2, /*keepdim=*/false, at::kFloat).to(grad.scalar_type());
  };
  return {of_key_heads(grad_q),
          of_key_heads(grad_k),
          grad_v,
          of.log_decay ? grad_log_decay.to(of.log_decay->scalar_type()) : Tensor(),
          of.beta ? grad_beta.to(of.beta->scalar_type()) : Tensor(),
          Tensor(),
          grad_initial};
}

Tensor gated_delta_rule_prefill_with(const GatedDeltaRuleKernels& table, const GatedDeltaRulePrefill& in) {
  if (!uses_kernel_for("gated_delta_rule_prefill", in.of)) return prefill(in);
  check(in);
  const Tensor slots = in.slots.contiguous();
  return advance(table, in.of, in.cu_seqlens, in.state, slots.const_data_ptr<int64_t>());
}

kernels::GatedDeltaRule gated_delta_rule_step_arguments(const GatedDeltaRuleStep& in, const Tensor& y) {
  kernels::GatedDeltaRule to = arguments_of(in.of, y);
  to.state = static_cast<float*>(in.state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(in.slots.const_data_ptr());
  return to;
}

Tensor gated_delta_rule_step_with(const GatedDeltaRuleKernels& table, const GatedDeltaRuleStep& in) {
  if (!uses_kernel_for("gated_delta_rule_step", in.of)) return step_reference(in);
  check(in);
  const Launch launch = prepare(in.of);
  const Tensor slots = in.slots.contiguous();
  require_ok(table.step(gated_delta_rule_step_arguments({launch.inputs, in.state, slots}, launch.y)));
  return launch.y;
}

namespace {

template <class Op>
Tensor like_v(const Op& in) {
  check(in);
  return at::empty(in.of.v.sizes(), in.of.v.options());
}

const GatedDeltaRuleKernels kCpu{kernels::cpu::gated_delta_rule_step};  // rows go by ATen

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<GatedDeltaRule>(m).reference<forward>().meta<forward_meta>().autograd<forward_autograd>().named_reference<forward_by_token>();
  define<GatedDeltaRuleBackward>(m).reference<backward_reference>().meta<backward_meta>();
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
