// torch.ops.based: the gated delta rule (GLA, DeltaNet, Gated DeltaNet, Mamba-2, RWKV).
#include "based/ops/delta_rule/gated_delta_rule_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::GatedDeltaRuleLaunchers;
using Rule = std::tuple<Tensor, Tensor>;                                                   // y, state
using RuleGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // see the schema

struct Inputs {
  Tensor q, k, v;
  OptionalTensor log_decay, beta, bonus;
  bool delta;
  double scale;
};

// Memory of a launch and its arguments.
struct Launch {
  Inputs inputs;
  Tensor y, starts;
  kernels::GatedDeltaRule arguments;
};

Launch prepare(const Inputs& in) {
  const auto in_fp32 = [](const OptionalTensor& gate) {
    return gate ? OptionalTensor(as_contiguous(*gate, ScalarType::Float)) : std::nullopt;
  };
  Launch launch{{as_contiguous(in.q), as_contiguous(in.k), as_contiguous(in.v), in_fp32(in.log_decay), in_fp32(in.beta), in_fp32(in.bonus),
                 in.delta, in.scale},
                empty(sizes_of(in.v), in.v),
                {},
                {}};
  launch.arguments = ops::delta_rule_arguments(launch.inputs, launch.y);
  return launch;
}

void check_rows(const char* op, const Inputs& in, const Tensor& cu_seqlens) {
  ops::check_delta_rule_inputs(op, in);
  require_row_starts(op, "cu_seqlens", cu_seqlens);
  check_row_starts(op, "cu_seqlens", cu_seqlens, in.q.size(0));
}

const GatedDeltaRuleLaunchers* launchers_of_rule(const char* op, const Inputs& in) {
  return launchers_for<GatedDeltaRuleLaunchers>(op, in.q, in.q.size(2) <= kernels::gated_delta_rule_max_key_dim);
}

// y. A row's state is that of its slot; where `slots` is null, of its number.
Tensor run(const char* op, const GatedDeltaRuleLaunchers& table, Launch& launch, const Tensor& state, const int64_t* slots) {
  launch.arguments.state = written<float>(state), launch.arguments.slot = slots;
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), state);
  require_ok(op, table.forward(launch.arguments, written_data(scratch), queue_of(state)), state);
  return launch.y;
}

Tensor first_state(const Inputs& in, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  if (initial_state) return copy_of(*initial_state);
  return zeros({cu_seqlens.size(0) - 1, in.v.size(1), in.q.size(2), in.v.size(2)}, in.q, ScalarType::Float);
}

Rule forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_decay, const OptionalTensor& beta,
             const OptionalTensor& bonus, bool delta, double scale, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  constexpr const char* kOp = "gated_delta_rule";
  const Inputs in{q, k, v, log_decay, beta, bonus, delta, scale};
  check_rows(kOp, in, cu_seqlens);
  if (initial_state) ops::check_delta_rule_state(kOp, "initial_state", *initial_state, cu_seqlens.size(0) - 1, in);
  const GatedDeltaRuleLaunchers* table = launchers_of_rule(kOp, in);
  if (table == nullptr) return call_reference<Rule>(kOp, q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, initial_state);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const Tensor state = first_state(in, cu_seqlens, initial_state);
  return {run(kOp, *table, launch, state, nullptr), state};
}

// The sum of the gradients [tokens, heads, key_dim] over the heads that share a key head.
Tensor sum_to_key_heads(const Tensor& grad, int64_t key_heads) {
  const int64_t tokens = grad.size(0), heads = grad.size(1), key_dim = grad.size(2);
  if (heads == key_heads) return grad;
  const Tensor by_key_head = torch::stable::view(grad, {tokens, key_heads, heads / key_heads, key_dim});
  const std::vector<int64_t> shared{2};
  return as_contiguous(torch::stable::sum(by_key_head, shared, false, ScalarType::Float), grad.scalar_type());
}

RuleGradients backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& q, const Tensor& k, const Tensor& v,
                       const OptionalTensor& log_decay, const OptionalTensor& beta, const OptionalTensor& bonus, bool delta, double scale,
                       const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  constexpr const char* kOp = "gated_delta_rule_backward";
  const Inputs in{q, k, v, log_decay, beta, bonus, delta, scale};
  check_rows(kOp, in, cu_seqlens);
  const int64_t rows = cu_seqlens.size(0) - 1;
  if (initial_state) ops::check_delta_rule_state(kOp, "initial_state", *initial_state, rows, in);
  if (grad_state) ops::check_delta_rule_state(kOp, "grad_state", *grad_state, rows, in);
  require_like(kOp, "grad_y", grad_y, q);
  require_shape(kOp, "grad_y", grad_y, sizes_of(v));
  const auto* of_device = kernels::launchers<GatedDeltaRuleLaunchers>(kernel_device(q));
  const bool supported = of_device != nullptr && has_kernel(q) && ops::delta_rule_has_backward(*of_device, in);
  const auto* table = launchers_for<GatedDeltaRuleLaunchers>(kOp, q, supported);
  if (table == nullptr)
    return call_reference<RuleGradients>(kOp, grad_y, grad_state, q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, initial_state);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const Tensor cotangent = as_contiguous(grad_y), state = first_state(in, cu_seqlens, initial_state);
  const OptionalTensor state_cotangent = as_contiguous(grad_state);
  const Sizes of_heads{q.size(0), v.size(1), q.size(2)};
  const Tensor grad_q = empty(of_heads, q), grad_k = empty(of_heads, q), grad_v = launch.y;  // the backward writes no y
  const auto like = [](const OptionalTensor& t) { return t ? empty(sizes_of(*t), *t, ScalarType::Float) : Tensor(); };
  const auto floats = [](const Tensor& t) { return t.defined() ? written<float>(t) : nullptr; };
  const Tensor grad_log_decay = like(log_decay), grad_beta = like(beta), grad_initial = like(initial_state);
  kernels::GatedDeltaRuleBackward to;
  to.forward = launch.arguments;
  to.forward.state = written<float>(state);
  to.grad_y = data(cotangent), to.grad_state = pointer<float>(state_cotangent);
  to.grad_q = written_data(grad_q), to.grad_k = written_data(grad_k), to.grad_v = written_data(grad_v);
  to.grad_log_decay = floats(grad_log_decay), to.grad_beta = floats(grad_beta), to.grad_initial_state = floats(grad_initial);
  const Tensor scratch = scratch_memory(table->backward_scratch(to), q);
  require_ok(kOp, table->backward(to, written_data(scratch), queue_of(q)), q);
  const auto typed = [](const Tensor& grad, const OptionalTensor& gate) { return gate ? as_contiguous(grad, gate->scalar_type()) : grad; };
  return {sum_to_key_heads(grad_q, q.size(1)),
          sum_to_key_heads(grad_k, q.size(1)),
          grad_v,
          typed(grad_log_decay, log_decay),
          typed(grad_beta, beta),
          Tensor(),
          grad_initial};
}

Tensor prefill(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_decay, const OptionalTensor& beta,
               const OptionalTensor& bonus, bool delta, double scale, const Tensor& cu_seqlens, const Tensor& state, const Tensor& slots) {
  constexpr const char* kOp = "gated_delta_rule_prefill";
  const Inputs in{q, k, v, log_decay, beta, bonus, delta, scale};
  check_rows(kOp, in, cu_seqlens);
  ops::check_delta_rule_state(kOp, "state", state, -1, in);
  require_state_slots(kOp, {state}, slots, cu_seqlens.size(0) - 1);
  const GatedDeltaRuleLaunchers* table = launchers_of_rule(kOp, in);
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, state, slots);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const Tensor slot = as_contiguous(slots);
  return run(kOp, *table, launch, state, pointer<int64_t>(slot));
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_decay, const OptionalTensor& beta,
            const OptionalTensor& bonus, bool delta, double scale, const Tensor& state, const Tensor& slots) {
  constexpr const char* kOp = "gated_delta_rule_step";
  const Inputs in{q, k, v, log_decay, beta, bonus, delta, scale};
  ops::check_delta_rule_inputs(kOp, in);
  ops::check_delta_rule_state(kOp, "state", state, -1, in);
  require_state_slots(kOp, {state}, slots, q.size(0));
  const GatedDeltaRuleLaunchers* table = launchers_of_rule(kOp, in);
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, log_decay, beta, bonus, delta, scale, state, slots);
  Launch launch = prepare(in);
  const Tensor slot = as_contiguous(slots);
  launch.arguments.state = written<float>(state), launch.arguments.slot = pointer<int64_t>(slot);
  require_ok(kOp, table->step(launch.arguments, queue_of(q)), q);
  return launch.y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  define_with_reference(m,
                        "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? bonus, bool delta, float "
                        "scale, Tensor cu_seqlens, Tensor? initial_state=None) -> (Tensor y, Tensor state)");
  define_with_reference(
      m,
      "gated_delta_rule_backward(Tensor grad_y, Tensor? grad_state, Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? "
      "bonus, bool delta, float scale, Tensor cu_seqlens, Tensor? initial_state=None) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, "
      "Tensor grad_log_decay, Tensor grad_beta, Tensor grad_bonus, Tensor grad_initial_state)");
  define_with_reference(m,
                        "gated_delta_rule_prefill(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? bonus, bool "
                        "delta, float scale, Tensor cu_seqlens, Tensor(a!) state, Tensor slots) -> Tensor");
  define_with_reference(m,
                        "gated_delta_rule_step(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? bonus, bool delta, "
                        "float scale, Tensor(a!) state, Tensor slots) -> Tensor");
}

// The CPU has a kernel for steps alone; the references of the others are fast there.
STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { implement<step>(m, "gated_delta_rule_step"); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<forward>(m, "gated_delta_rule");
  implement<backward>(m, "gated_delta_rule_backward");
  implement<prefill>(m, "gated_delta_rule_prefill");
  implement<step>(m, "gated_delta_rule_step");
}

}  // namespace
}  // namespace based::python
