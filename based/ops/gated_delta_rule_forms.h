// Inside of based/ops: the ATen forms of the gated delta rule, any floating type, differentiated by ATen's autograd.
#pragma once
#include "based/ops/gated_delta_rule.h"

namespace based::ops {

// Of checked arguments.
std::tuple<Tensor, Tensor> gated_delta_rule_by_token(const GatedDeltaRule& in);
std::tuple<Tensor, Tensor> gated_delta_rule_by_chunk(const GatedDeltaRule& in);

}  // namespace based::ops
