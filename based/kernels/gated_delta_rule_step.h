// A step of the gated delta rule in decoding, where it makes its own decays.
#pragma once
#include "based/kernels/gated_delta_rule.h"
#include "based/kernels/gpu.h"
#include "based/kernels/linear.h"

namespace based::kernels {

constexpr int kRuleStepColumns = 32;    // value channels of a block, or twice as many
constexpr int kRuleStepMostKeys = 256;  // of these blocks
constexpr int kRuleStepInputs = 16;

// Whether a block takes whole value channels; else lanes share a state's columns, token by token.
inline bool gated_delta_rule_step_in_slices(const GatedDeltaRule& p) {
  return p.key_dim <= kRuleStepMostKeys && p.value_dim % kRuleStepColumns == 0 && aligned16(p.state) && aligned16(p.v) && aligned16(p.y);
}

// Decays of each channel from a layer of few inputs that has no launch of its own: rule.log_decay = scale · log sigmoid of
// layer(layer.x), rounded as the layer rounds it. rule.log_decay and layer.y are ignored.
struct GatedDeltaRuleOfLayer {
  GatedDeltaRule rule;
  Linear layer;
  float scale = 1;
};
// What is read ahead is read ahead of both or of neither.
inline bool gated_delta_rule_makes_decays(const GatedDeltaRuleOfLayer& p, const Gpu& gpu) {
  const GatedDeltaRule& rule = p.rule;
  const Linear& layer = p.layer;
  return gpu.multiprocessors > 0 && gated_delta_rule_step_in_slices(rule) && rule.dtype == DType::bf16 && layer.dtype == DType::bf16 &&
         layer.y_dtype == DType::bf16 && !layer.accumulate && layer.weight_is_constant == rule.state_is_private && rule.decay_dim > 1 &&
         layer.rows == rule.rows && layer.out == int64_t{rule.heads} * rule.key_dim && layer.in == kRuleStepInputs &&
         layer.x_stride % 8 == 0 && layer.weight_stride % 8 == 0 && aligned16(layer.x) && aligned16(layer.weight);
}

namespace cuda {
Status gated_delta_rule_step_of_layer(const GatedDeltaRuleOfLayer& p, Stream stream);  // `gated_delta_rule_makes_decays`
}  // namespace cuda

}  // namespace based::kernels
