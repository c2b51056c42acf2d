// The kernels that plans launch: one line each.
#include "based/decode/cuda/launchers.h"

#include "based/decode/join_layers.h"
#include "based/decode/join_norms.h"
#include "based/kernels/gated_delta_rule_step.h"
#include "based/kernels/selective_scan_hopper.h"
#include "based/kernels/step_program.h"
#include "based/kernels/taylor_deferred.h"

namespace based::decode {

namespace gpu = kernels::cuda;

void set_launchers() {
  launcher<kernels::RmsNorm> = gpu::rms_norm_forward;
  launcher<kernels::Linear> = gpu::linear;
  launcher<GatedLinear> = [](const GatedLinear& p, Stream stream) { return gpu::linear_swiglu(p.layer, stream); };
  launcher<kernels::ShortConv> = gpu::short_conv_step;
  launcher<kernels::SelectiveScan> = gpu::selective_scan_step;
  launcher<kernels::SelectiveScanOfLayer> = gpu::selective_scan_step_of_layer;
  launcher<kernels::Activate> = gpu::activate;
  launcher<kernels::GatedDeltaRuleOfLayer> = gpu::gated_delta_rule_step_of_layer;
  launcher<kernels::GatedDeltaRule> = gpu::gated_delta_rule_step;
  launcher<kernels::TaylorAttention> = gpu::taylor_attention_step;
  launcher<kernels::TaylorDeferred> = gpu::taylor_deferred_step;
  launcher<kernels::CausalAttentionStep> = gpu::causal_attention_step;
  launcher<LayersOfOneRow> = [](const LayersOfOneRow& p, Stream stream) { return gpu::linears_of_one_row(p.layers, stream); };
  launcher<LayerBeforeNorm> = [](const LayerBeforeNorm& p, Stream stream) { return gpu::linear_before_norm(p.layer, p.after, stream); };
  launcher<LayersAfterNorm> = [](const LayersAfterNorm& p, Stream stream) { return gpu::linears_after_norm(p.layers, p.before, stream); };
  launcher<GatedLayerAfterNorm> = [](const GatedLayerAfterNorm& p, Stream stream) {
    return gpu::linear_swiglu_after_norm(p.layer, p.before, stream);
  };
  launcher<kernels::StepProgram> = gpu::step_program;
}

}  // namespace based::decode
