#include "based/ops/gated_delta_rule.h"

#include "based/ops/cuda/on_device.h"
#include "based/ops/gated_delta_rule_forms.h"
#include "based/ops/operator_gradient.h"

namespace based::ops {
namespace {

const GatedDeltaRuleKernels kCuda{launch<kernels::cuda::gated_delta_rule_step, kernels::GatedDeltaRule>,
                                  kernels::cuda::gated_delta_rule_scratch,
                                  launch_with_scratch<kernels::cuda::gated_delta_rule_forward, kernels::GatedDeltaRule>,
                                  kernels::cuda::gated_delta_rule_has_backward,
                                  kernels::cuda::gated_delta_rule_backward_scratch,
                                  launch_with_scratch<kernels::cuda::gated_delta_rule_backward, kernels::GatedDeltaRuleBackward>};

Result<GatedDeltaRule> with_gradient(const GatedDeltaRule& in) {
  return call_with_gradient<GatedDeltaRule, GatedDeltaRule, GatedDeltaRuleBackward, gated_delta_rule_by_chunk>(in);
}

// The kernels' backward takes no beta without `delta`: v takes it before. What has no kernel is differentiated by ATen.
Result<GatedDeltaRule> autograd(const GatedDeltaRule& in) {
  bool wanted = false;
  each_tensor(in, [&](std::string_view, const Tensor& tensor) { wanted = wanted || wants_gradient({tensor}); });
  if (!wanted || has_gated_delta_rule_backward(kCuda, in)) return with_gradient(in);
  GatedDeltaRuleInputs of = in.of;
  if (of.beta && !of.delta) {
    of.v = (of.v * of.beta->unsqueeze(-1)).to(of.v.scalar_type());
    of.beta = std::nullopt;
    const GatedDeltaRule rest{of, in.cu_seqlens, in.initial_state};
    if (has_gated_delta_rule_backward(kCuda, rest)) return with_gradient(rest);
  }
  check_gated_delta_rule(in);
  return gated_delta_rule_by_chunk(in);
}

TORCH_LIBRARY_IMPL(based, AutogradCUDA, m) { implement<GatedDeltaRule, autograd>(m); }

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<GatedDeltaRule, [](const GatedDeltaRule& in) { return gated_delta_rule_with(kCuda, in); }>(m);
  implement<GatedDeltaRuleBackward, [](const GatedDeltaRuleBackward& in) { return gated_delta_rule_backward_with(kCuda, in); }>(m);
  implement<GatedDeltaRulePrefill, [](const GatedDeltaRulePrefill& in) { return gated_delta_rule_prefill_with(kCuda, in); }>(m);
  implement<GatedDeltaRuleStep, [](const GatedDeltaRuleStep& in) { return gated_delta_rule_step_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
