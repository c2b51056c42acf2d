// Training on a GPU: arguments without a backward kernel are converted to arguments that have one.
#include "based/ops/delta_rule/gated_delta_rule.h"
#include "based/ops/delta_rule/gated_delta_rule_forms.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"

namespace based::ops {
namespace {

Result<GatedDeltaRule> by_chunk(const GatedDeltaRule& in) { return gated_delta_rule_by_chunk(in.inputs, in.cu_seqlens, in.initial_state); }

Result<GatedDeltaRule> with_gradient(const GatedDeltaRule& in) {
  return call_with_gradient<GatedDeltaRule, GatedDeltaRule, GatedDeltaRuleBackward, by_chunk>(in);
}

// Keys and values padded with columns of zeros to sizes that have kernels. The original columns of the results do not change.
struct Wide {
  GatedDeltaRuleInputs inputs;
  OptionalTensor initial_state;
};
Wide widened(const GatedDeltaRule& in) {
  Wide to{in.inputs, std::nullopt};
  GatedDeltaRuleInputs& wide = to.inputs;
  const int64_t keys = wide.q.size(2), more_keys = (keys <= 64 ? 64 : 128) - keys, more_values = (64 - wide.v.size(2) % 64) % 64;
  const auto widen = [](const Tensor& x, int64_t columns) { return at::constant_pad_nd(x, {0, columns}); };
  wide.q = widen(wide.q, more_keys), wide.k = widen(wide.k, more_keys), wide.v = widen(wide.v, more_values);
  if (wide.log_decay && wide.log_decay->dim() == 3 && wide.log_decay->size(2) == keys) wide.log_decay = widen(*wide.log_decay, more_keys);
  if (wide.bonus) wide.bonus = widen(*wide.bonus, more_keys);
  if (in.initial_state) to.initial_state = at::constant_pad_nd(*in.initial_state, {0, more_values, 0, more_keys});
  return to;
}

// The backward kernels support no beta without `delta`: v is multiplied by it first. ATen differentiates calls that have no kernel.
Result<GatedDeltaRule> autograd(const GatedDeltaRule& in) {
  bool wanted = false;
  each_tensor(in, [&](std::string_view, const Tensor& tensor) { wanted = wanted || wants_gradient({tensor}); });
  if (!wanted || has_gated_delta_rule_backward(in)) return with_gradient(in);
  check_gated_delta_rule(in);
  GatedDeltaRuleInputs inputs = in.inputs;
  if (inputs.beta && !inputs.delta) {
    inputs.v = (inputs.v * inputs.beta->unsqueeze(-1)).to(inputs.v.scalar_type());
    inputs.beta = std::nullopt;
  }
  const GatedDeltaRule rest{inputs, in.cu_seqlens, in.initial_state};
  if (has_gated_delta_rule_backward(rest)) return with_gradient(rest);
  const int64_t keys = inputs.q.size(2), values = inputs.v.size(2);
  if (inputs.q.scalar_type() == at::kBFloat16 && keys <= 128) {
    const Wide wide = widened(rest);
    const GatedDeltaRule padded{wide.inputs, in.cu_seqlens, wide.initial_state};
    if (has_gated_delta_rule_backward(padded)) {
      const auto [y, state] = with_gradient(padded);
      return {y.narrow(2, 0, values).contiguous(), state.narrow(2, 0, keys).narrow(3, 0, values).contiguous()};
    }
  }
  return by_chunk(in);
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, AutogradCUDA, m) { implement<GatedDeltaRule, autograd>(m); }

}  // namespace
}  // namespace based::ops
