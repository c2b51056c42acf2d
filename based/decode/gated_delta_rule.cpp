// A step of the gated delta rule: its state is read ahead; behind a layer of few inputs whose outputs' log sigmoids are its decays it makes
// these itself.
#include "based/ops/gated_delta_rule.h"
#include "based/decode/state_kernel.h"
#include "based/kernels/gated_delta_rule_step.h"
#include "based/ops/arguments.h"

namespace based::decode {
namespace {

using kernels::GatedDeltaRule;
using kernels::GatedDeltaRuleOfLayer;

class RuleKernel final : public StateKernel<GatedDeltaRule> {
 public:
  struct Parts {
    Span log_decay, y;
  };
  RuleKernel(const GatedDeltaRule& arguments, ReadAhead ahead, Parts parts) : StateKernel(arguments, std::move(ahead)), parts_(parts) {}

  StepChain with(std::span<const StepKernel* const> before, const Gpu& gpu) const override {
    if (before.size() < 2) return {};
    const ActivationParts* gate = before[0]->activation();
    const LinearParts* layer = before[1]->linear();
    if (gate == nullptr || layer == nullptr || layer->gated || !(gate->y == parts_.log_decay) || !(gate->x == layer->y)) return {};
    if (gate->arguments.function != kernels::Activation::log_sigmoid || share_memory(layer->x, parts_.y)) return {};
    const GatedDeltaRuleOfLayer all{arguments_, layer->arguments, gate->arguments.scale};
    if (!kernels::gated_delta_rule_makes_decays(all, gpu)) return {};
    return {std::make_unique<ArgumentsKernel<GatedDeltaRuleOfLayer>>(all, arguments_.rows), 2};
  }

 private:
  Parts parts_;
};

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
  return std::make_unique<RuleKernel>(ops::gated_delta_rule_step_arguments(step, y), ReadAhead{{call.span(slots)}, {call.span(state)}},
                                      RuleKernel::Parts{call.span(log_decay), call.span(y)});
}

constexpr Lowering kLowerings[] = {{"based::gated_delta_rule_step", lower}};

}  // namespace

std::span<const Lowering> lowerings_of_gated_delta_rule() { return kLowerings; }

}  // namespace based::decode
