// A step of the gated delta rule: its state is read ahead.
#include "based/ops/gated_delta_rule.h"
#include "based/decode/state_kernel.h"
#include "based/ops/arguments.h"

namespace based::decode {
namespace {

std::unique_ptr<StepKernel> lower(const Operands& call, std::string& why) {
  const Tensor q = call.tensor(0), k = call.tensor(1), v = call.tensor(2), log_decay = call.tensor(3), beta = call.tensor(4),
               bonus = call.tensor(5), state = call.tensor(8), slots = call.tensor(9), y = call.result();
  why = "no kernel for this type or size";
  if (!ops::has_kernel(q) || q.size(-1) > kernels::gated_delta_rule_max_key_dim) return nullptr;
  why = "gates that are not fp32";
  for (const Tensor& gate : {log_decay, beta, bonus})
    if (gate.defined() && gate.scalar_type() != at::kFloat) return nullptr;
  why = "elements that lie apart";
  for (const Tensor& tensor : {q, k, v, log_decay, beta, bonus, state, slots})
    if (tensor.defined() && !tensor.is_contiguous()) return nullptr;
  const ops::GatedDeltaRuleStep step{
      {q, k, v, ops::if_defined(log_decay), ops::if_defined(beta), ops::if_defined(bonus), call.flag(6), call.number(7)}, state, slots};
  return std::make_unique<StateKernel<kernels::GatedDeltaRule>>(ops::gated_delta_rule_step_arguments(step, y),
                                                                ReadAhead{{call.span(slots)}, {call.span(state)}});
}

constexpr Lowering kLowerings[] = {{"based::gated_delta_rule_step", lower}};

}  // namespace

std::span<const Lowering> lowerings_of_gated_delta_rule() { return kLowerings; }

}  // namespace based::decode
