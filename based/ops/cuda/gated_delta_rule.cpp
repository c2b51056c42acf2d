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

// Columns of zeros behind the keys and the values, to sizes that have kernels: what is in front stays as it is.
struct Wide {
  GatedDeltaRuleInputs of;
  OptionalTensor initial_state;
};
Wide widened(const GatedDeltaRule& in) {
  Wide to{in.of, std::nullopt};
  GatedDeltaRuleInputs& of = to.of;
  const int64_t keys = of.q.size(2), more_keys = (keys <= 64 ? 64 : 128) - keys, more_values = (64 - of.v.size(2) % 64) % 64;
  const auto widen = [](const Tensor& x, int64_t columns) { return at::constant_pad_nd(x, {0, columns}); };
  of.q = widen(of.q, more_keys), of.k = widen(of.k, more_keys), of.v = widen(of.v, more_values);
  if (of.log_decay && of.log_decay->dim() == 3 && of.log_decay->size(2) == keys) of.log_decay = widen(*of.log_decay, more_keys);
  if (in.initial_state) to.initial_state = at::constant_pad_nd(*in.initial_state, {0, more_values, 0, more_keys});
  return to;
}

// The kernels' backward takes no beta without `delta`: v takes it before. What has no kernel is differentiated by ATen.
Result<GatedDeltaRule> autograd(const GatedDeltaRule& in) {
  bool wanted = false;
  each_tensor(in, [&](std::string_view, const Tensor& tensor) { wanted = wanted || wants_gradient({tensor}); });
  if (!wanted || has_gated_delta_rule_backward(kCuda, in)) return with_gradient(in);
  check_gated_delta_rule(in);
  GatedDeltaRuleInputs of = in.of;
  if (of.beta && !of.delta) {
    of.v = (of.v * of.beta->unsqueeze(-1)).to(of.v.scalar_type());
    of.beta = std::nullopt;
  }
  const GatedDeltaRule rest{of, in.cu_seqlens, in.initial_state};
  if (has_gated_delta_rule_backward(kCuda, rest)) return with_gradient(rest);
  const int64_t keys = of.q.size(2), values = of.v.size(2);
  if (of.q.scalar_type() == at::kBFloat16 && keys <= 128 && !of.bonus) {
    const Wide wide = widened(rest);
    const GatedDeltaRule of_wide{wide.of, in.cu_seqlens, wide.initial_state};
    if (has_gated_delta_rule_backward(kCuda, of_wide)) {
      const auto [y, state] = with_gradient(of_wide);
      return {y.narrow(2, 0, values).contiguous(), state.narrow(2, 0, keys).narrow(3, 0, values).contiguous()};
    }
  }
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
