#include "based/ops/projected_conv.h"

#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"
#include "based/ops/rows.h"
#include "based/ops/short_conv.h"
#include "based/ops/split_columns.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "projected_conv";

}  // namespace

void check_projected_conv(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight) {
  require_shape(kOp, "weight", weight, {-1, -1});
  require_shape(kOp, "in_weight", in_weight, {2 * weight.size(0), -1});
  check_linear(x, in_weight, in_bias);
}

std::tuple<Tensor, Tensor> projected_conv_by_parts(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias,
                                                   const Tensor& weight, const OptionalTensor& bias, const Tensor& cu_seqlens,
                                                   const OptionalTensor& initial_state) {
  check_projected_conv(x, in_weight, in_bias, weight);
  const auto u = split_columns(ops::linear(x, in_weight, in_bias), {weight.size(0), weight.size(0)});
  return short_conv(u[0], weight, bias, u[1], true, cu_seqlens, initial_state);
}

Tensor projected_conv_prefill_by_parts(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                                       const OptionalTensor& bias, const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  check_projected_conv(x, in_weight, in_bias, weight);
  const auto u = split_columns(ops::linear(x, in_weight, in_bias), {weight.size(0), weight.size(0)});
  return short_conv_prefill_in_place(u[0], weight, bias, u[1], true, cu_seqlens, state, slots);
}

std::tuple<Tensor, Tensor> projected_conv_reference(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias,
                                                    const Tensor& weight, const OptionalTensor& bias, const Tensor& cu_seqlens,
                                                    const OptionalTensor& initial_state) {
  check_projected_conv(x, in_weight, in_bias, weight);
  const auto u = linear_reference(x, in_weight, in_bias).split(weight.size(0), 1);
  return short_conv_reference(u[0], weight, bias, u[1], true, cu_seqlens, initial_state);
}

std::tuple<Tensor, Tensor> projected_conv(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                                          const OptionalTensor& bias, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  static const auto op = find_operator<decltype(projected_conv_by_parts)>("based::projected_conv");
  return op.call(x, in_weight, in_bias, weight, bias, cu_seqlens, initial_state);
}

Tensor projected_conv_prefill(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                              const OptionalTensor& bias, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  if (at::GradMode::is_enabled()) {
    const auto [y, last] = projected_conv(x, in_weight, in_bias, weight, bias, cu_seqlens, state.index_select(0, slots));
    write_rows(state, slots, last);
    return y;
  }
  static const auto op = find_operator<decltype(projected_conv_prefill_by_parts)>("based::projected_conv_prefill");
  return op.call(x, in_weight, in_bias, weight, bias, cu_seqlens, state, slots);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "projected_conv(Tensor x, Tensor in_weight, Tensor? in_bias, Tensor weight, Tensor? bias, Tensor cu_seqlens, "
      "Tensor? initial_state=None) -> (Tensor y, Tensor state)");
  m.def(
      "projected_conv_prefill(Tensor x, Tensor in_weight, Tensor? in_bias, Tensor weight, Tensor? bias, Tensor cu_seqlens, "
      "Tensor(a!) state, Tensor slots) -> Tensor");
  m.def(
      "projected_conv_reference(Tensor x, Tensor in_weight, Tensor? in_bias, Tensor weight, Tensor? bias, Tensor cu_seqlens, "
      "Tensor? initial_state=None) -> (Tensor y, Tensor state)",
      projected_conv_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeImplicitAutograd, m) {
  m.impl("projected_conv", projected_conv_by_parts);
  m.impl("projected_conv_prefill", projected_conv_prefill_by_parts);
}

}  // namespace
}  // namespace based::ops
