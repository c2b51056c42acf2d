// A step of the gated delta rule. Its kernel reads the state early. After a layer with few inputs, whose outputs' log sigmoids are the
// decays, the kernel computes the decays itself.
#include "based/ops/delta_rule/gated_delta_rule.h"
#include "based/decode/state_kernel.h"
#include "based/kernels/delta_rule/delta_rule_step.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

using kernels::GatedDeltaRule;
using kernels::GatedDeltaRuleOfLayer;

class RuleKernel final : public StateKernel<GatedDeltaRule> {
 public:
  struct Parts {
    Span log_decay, y;
  };
  RuleKernel(const GatedDeltaRule& arguments, EarlyReads early, Parts parts) : StateKernel(arguments, std::move(early)), parts_(parts) {}

  StepChain absorb_predecessors(std::span<const StepKernel* const> before, const Gpu& gpu) const override {
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

std::unique_ptr<StepKernel> lower_gated_delta_rule(const Operands& call, std::string& why) {
  const Tensor q = call.tensor(0), k = call.tensor(1), v = call.tensor(2), log_decay = call.tensor(3), beta = call.tensor(4),
               bonus = call.tensor(5), state = call.tensor(8), slots = call.tensor(9), y = call.result();
  why = "no kernel for this type or size";
  if (!ops::has_kernel(q) || q.size(-1) > kernels::gated_delta_rule_max_key_dim) return nullptr;
  why = "gates that are not fp32";
  for (const Tensor& gate : {log_decay, beta, bonus})
    if (gate.defined() && gate.scalar_type() != at::kFloat) return nullptr;
  why = "is not contiguous";
  for (const Tensor& tensor : {q, k, v, log_decay, beta, bonus, state, slots})
    if (tensor.defined() && !tensor.is_contiguous()) return nullptr;
  const ops::GatedDeltaRuleStep step{
      {q, k, v, ops::if_defined(log_decay), ops::if_defined(beta), ops::if_defined(bonus), call.flag(6), call.number(7)}, state, slots};
  return std::make_unique<RuleKernel>(ops::gated_delta_rule_step_arguments(step, y), EarlyReads{{call.span(slots)}, {call.span(state)}},
                                      RuleKernel::Parts{call.span(log_decay), call.span(y)});
}

constexpr Lowering kGatedDeltaRuleLowerings[] = {{"based::gated_delta_rule_step", lower_gated_delta_rule}};

}  // namespace

std::span<const Lowering> lowerings_of_gated_delta_rule() { return kGatedDeltaRuleLowerings; }

}  // namespace based::decode
