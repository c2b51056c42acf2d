// Decode step of the gated delta rule that can compute its own decays.
#pragma once
#include "based/kernels/common/gpu.h"
#include "based/kernels/delta_rule/delta_rule.h"
#include "based/kernels/linear/linear.h"

namespace based::kernels {

constexpr int kRuleStepColumns = 32;   // value channels of a block, or twice this number
constexpr int kRuleStepMaxKeys = 256;  // largest key_dim of the kernel whose blocks handle slices of value channels
constexpr int kRuleStepInputs = 16;    // inputs of the decay layer

// Whether the step uses the kernel whose blocks handle slices of kRuleStepColumns value channels. Otherwise it uses the kernel for any
// sizes, which processes token by token.
inline bool gated_delta_rule_step_in_slices(const GatedDeltaRule& p) {
  return p.key_dim <= kRuleStepMaxKeys && p.value_dim % kRuleStepColumns == 0 && aligned16(p.state) && aligned16(p.v) && aligned16(p.y);
}

// A step fused with the linear layer that computes its decays: log_decay = scale · log sigmoid of layer(layer.x), which is first rounded to
// the layer's output type. rule.log_decay and layer.y are ignored.
struct GatedDeltaRuleOfLayer {
  GatedDeltaRule rule;
  Linear layer;
  float scale = 1;
};
// Whether the fused step supports the problem. The rule's states and the layer's weights are both loaded before the previous kernel ends,
// or neither, so weight_is_constant must equal state_is_private.
inline bool gated_delta_rule_makes_decays(const GatedDeltaRuleOfLayer& p, const Gpu& gpu) {
  const GatedDeltaRule& rule = p.rule;
  const Linear& layer = p.layer;
  return gpu.multiprocessors > 0 && gated_delta_rule_step_in_slices(rule) && rule.dtype == DType::bf16 && layer.dtype == DType::bf16 &&
         layer.y_dtype == DType::bf16 && !layer.accumulate && layer.weight_is_constant == rule.state_is_private && rule.decay_dim > 1 &&
         layer.rows == rule.rows && layer.out == int64_t{rule.heads} * rule.key_dim && layer.in == kRuleStepInputs &&
         layer.x_stride % 8 == 0 && layer.weight_stride % 8 == 0 && aligned16(layer.x) && aligned16(layer.weight);
}

namespace cuda {
Status gated_delta_rule_step_of_layer(const GatedDeltaRuleOfLayer& p, Queue queue);  // where gated_delta_rule_makes_decays
}  // namespace cuda

// A GPU's launcher, as above.
struct GatedDeltaRuleOfLayerLaunchers {
  Status (*step)(const GatedDeltaRuleOfLayer&, Queue);
};

}  // namespace based::kernels
