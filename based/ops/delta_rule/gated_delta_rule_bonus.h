// Inside of based/ops: the gradient of the gated delta rule with a bonus, by the gradient of the rule without one.
#pragma once
#include <functional>

#include "based/ops/delta_rule/gated_delta_rule.h"

namespace based::ops {

using GatedDeltaRuleGradient = std::function<Result<GatedDeltaRuleBackward>(const GatedDeltaRuleBackward&)>;

// `in` has a bonus and at least one token. `gradient` is called once, without a bonus. Deterministic; asks the device nothing.
Result<GatedDeltaRuleBackward> gated_delta_rule_gradient_with_bonus(const GatedDeltaRuleBackward& in,
                                                                    const GatedDeltaRuleGradient& gradient);

}  // namespace based::ops
