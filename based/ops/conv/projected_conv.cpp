#include "based/ops/conv/projected_conv.h"

#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear/split_columns.h"

namespace based::ops {

void check_projected_conv(const ProjectedConvLayer& in) {
  constexpr const char* op = "projected_conv";
  require_shape(op, "weight", in.weight, {-1, -1});
  require_shape(op, "in_weight", in.in_weight, {2 * in.weight.size(0), -1});
  check_linear({in.x, in.in_weight, in.in_bias});
}

Result<ProjectedConv> projected_conv_fallback(const ProjectedConv& in) {
  const auto& [x, in_weight, in_bias, weight, bias] = in.layer;
  check_projected_conv(in.layer);
  const auto u = split_columns(ops::linear(x, in_weight, in_bias), {weight.size(0), weight.size(0)});
  return short_conv(u[0], weight, bias, u[1], true, in.cu_seqlens, in.initial_state);
}

Tensor projected_conv_prefill_fallback(const ProjectedConvPrefill& in) {
  const auto& [x, in_weight, in_bias, weight, bias] = in.layer;
  check_projected_conv(in.layer);
  const auto u = split_columns(ops::linear(x, in_weight, in_bias), {weight.size(0), weight.size(0)});
  return call(ShortConvPrefill{{u[0], weight, bias, u[1], true}, in.cu_seqlens, in.state, in.slots});
}

namespace {

Result<ProjectedConv> reference(const ProjectedConv& in) {
  const auto& [x, in_weight, in_bias, weight, bias] = in.layer;
  check_projected_conv(in.layer);
  const auto u = linear_reference(x, in_weight, in_bias).split(weight.size(0), 1);
  return short_conv_reference(u[0], weight, bias, u[1], true, in.cu_seqlens, in.initial_state);
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<ProjectedConv>(m).composite<projected_conv_fallback>().named_reference<reference>();
  define<ProjectedConvPrefill>(m).composite<projected_conv_prefill_fallback>();
}

}  // namespace

std::tuple<Tensor, Tensor> projected_conv_reference(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias,
                                                    const Tensor& weight, const OptionalTensor& bias, const Tensor& cu_seqlens,
                                                    const OptionalTensor& initial_state) {
  return reference(ProjectedConv{{x, in_weight, in_bias, weight, bias}, cu_seqlens, initial_state});
}

std::tuple<Tensor, Tensor> projected_conv(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                                          const OptionalTensor& bias, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  return call(ProjectedConv{{x, in_weight, in_bias, weight, bias}, cu_seqlens, initial_state});
}

Tensor projected_conv_prefill(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                              const OptionalTensor& bias, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  const ProjectedConvLayer layer{x, in_weight, in_bias, weight, bias};
  if (!at::GradMode::is_enabled()) return call(ProjectedConvPrefill{layer, cu_seqlens, state, slots});
  const auto from_state = [&](const OptionalTensor& initial) { return call(ProjectedConv{layer, cu_seqlens, initial}); };
  return prefill_slots_with_gradient(slots, from_state, state);
}

}  // namespace based::ops
