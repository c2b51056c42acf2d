// A step of the gated delta rule: its state is read ahead.
#include "based/ops/gated_delta_rule.h"
#include "based/decode/effects.h"
#include "based/ops/arguments.h"

namespace based::decode {
namespace {

using kernels::GatedDeltaRule;

class RuleKernel final : public StepKernel {
 public:
  struct Parts {
    GatedDeltaRule arguments;
    Span state, slots;
  };
  explicit RuleKernel(Parts parts) : parts_(std::move(parts)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    parts_.arguments.state_is_private = effects.is_constant(parts_.slots) && effects.is_private(parts_.state, unit);
    return parts_.arguments.state_is_private;
  }
  Status launch(Stream stream) const override { return launcher<GatedDeltaRule>(parts_.arguments, stream); }
  int64_t rows() const override { return parts_.arguments.rows; }

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
  return std::make_unique<RuleKernel>(RuleKernel::Parts{ops::gated_delta_rule_step_arguments(step, y), call.span(state), call.span(slots)});
}

constexpr Lowering kLowerings[] = {{"based::gated_delta_rule_step", lower}};

}  // namespace

std::span<const Lowering> lowerings_of_gated_delta_rule() { return kLowerings; }

}  // namespace based::decode
