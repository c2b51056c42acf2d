#include "based/decode/launch.h"

#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/delta_rule/delta_rule_step.h"
#include "based/kernels/linear/linear_step.h"
#include "based/kernels/linear/quantised_linear.h"
#include "based/kernels/norm/rms_norm.h"
#include "based/kernels/pointwise/activation.h"
#include "based/kernels/scan/scan_step.h"
#include "based/kernels/step/step_program.h"
#include "based/kernels/taylor/deferred.h"

namespace based::decode {
namespace {

// Calls an entry of the device's table.
template <class Table, class Entry, class... Arguments>
Status call(Entry Table::*entry, Queue queue, const Arguments&... arguments) {
  const Table* table = kernels::launchers<Table>(queue.device);
  if (table == nullptr || table->*entry == nullptr) return {"this program has no such kernel for the device"};
  return (table->*entry)(arguments..., queue);
}

}  // namespace

Status launch(const kernels::RmsNorm& p, Queue queue) { return call(&kernels::RmsNormLaunchers::forward, queue, p); }
Status launch(const kernels::Linear& p, Queue queue) { return call(&kernels::LinearLaunchers::forward, queue, p); }
Status launch(const kernels::QuantisedLinear& p, Queue queue) { return call(&kernels::QuantisedLinearLaunchers::forward, queue, p); }
Status launch(const kernels::Activate& p, Queue queue) { return call(&kernels::ActivationLaunchers::activate, queue, p); }
Status launch(const kernels::StepProgram& p, Queue queue) { return call(&kernels::StepProgramLaunchers::run, queue, p); }

Status launch(const kernels::CausalAttentionStep& p, Queue queue) { return call(&kernels::CausalAttentionLaunchers::step, queue, p); }
Status launch(const kernels::GatedDeltaRule& p, Queue queue) { return call(&kernels::GatedDeltaRuleLaunchers::step, queue, p); }
Status launch(const kernels::GatedDeltaRuleOfLayer& p, Queue queue) {
  return call(&kernels::GatedDeltaRuleOfLayerLaunchers::step, queue, p);
}
Status launch(const kernels::SelectiveScan& p, Queue queue) { return call(&kernels::SelectiveScanLaunchers::step, queue, p); }
Status launch(const kernels::SelectiveScanOfLayer& p, Queue queue) { return call(&kernels::SelectiveScanOfLayerLaunchers::step, queue, p); }
Status launch(const kernels::ShortConv& p, Queue queue) { return call(&kernels::ShortConvLaunchers::step, queue, p); }
Status launch(const kernels::TaylorAttention& p, Queue queue) { return call(&kernels::TaylorAttentionLaunchers::step, queue, p); }
Status launch(const kernels::TaylorDeferred& p, Queue queue) { return call(&kernels::TaylorDeferredLaunchers::step, queue, p); }

Status launch(const kernels::ShortConvFlush& p, Queue queue) { return call(&kernels::ShortConvLaunchers::flush, queue, p); }

Status launch(const kernels::CausalAttentionTokens& p, Queue queue) {
  return call(&kernels::CausalAttentionLaunchers::step_tokens, queue, p);
}
Status launch(const kernels::ShortConvTokens& p, Queue queue) { return call(&kernels::ShortConvLaunchers::step_tokens, queue, p); }
Status launch(const kernels::TaylorTokens& p, Queue queue) { return call(&kernels::TaylorAttentionLaunchers::step_tokens, queue, p); }

Status launch_swiglu(const kernels::Linear& p, Queue queue) { return call(&kernels::LinearLaunchers::swiglu, queue, p); }
Status launch_before_norm(const kernels::Linear& p, const kernels::NormAfter& after, Queue queue) {
  return call(&kernels::LinearStepLaunchers::before_norm, queue, p, after);
}
Status launch_swiglu_after_norm(const kernels::Linear& p, const kernels::NormBefore& before, Queue queue) {
  return call(&kernels::LinearStepLaunchers::swiglu_after_norm, queue, p, before);
}
Status launch_conv_after_norm(const kernels::Linear& p, const kernels::ShortConv& conv, const kernels::NormBefore& before, Queue queue) {
  return call(&kernels::LinearStepLaunchers::conv_after_norm, queue, p, conv, before);
}
Status launch_layers_after_norm(std::span<const kernels::Linear> layers, const kernels::NormBefore& before, Queue queue) {
  return call(&kernels::LinearStepLaunchers::layers_after_norm, queue, layers, before);
}
Status launch_layers_of_one_row(std::span<const kernels::Linear> layers, Queue queue) {
  return call(&kernels::LinearStepLaunchers::layers_of_one_row, queue, layers);
}

}  // namespace based::decode
