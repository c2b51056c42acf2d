// Inside of based/ops: the gated delta rule by ATen, for any floating type, differentiated by ATen's autograd.
#pragma once
#include <tuple>

#include "based/ops/delta_rule/gated_delta_rule_inputs.h"

namespace based::ops {

// y and the final state, see gated_delta_rule(). The arguments must have been checked.
std::tuple<Tensor, Tensor> gated_delta_rule_by_token(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                     const OptionalTensor& initial_state);
std::tuple<Tensor, Tensor> gated_delta_rule_by_chunk(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                     const OptionalTensor& initial_state);

// A gradient [tokens, heads, key_dim]: its sums over the heads that share a key head.
Tensor sum_to_key_heads(const Tensor& grad, int64_t key_heads);

}  // namespace based::ops
