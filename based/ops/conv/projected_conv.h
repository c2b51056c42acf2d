// The first half of BaseConv (paper, appendix "Convolution"): a projection, then the gated short convolution of its output.
#pragma once
#include <tuple>

#include "based/ops/framework/operator.h"

namespace based::ops {

// [u, gate] = linear(x, in_weight, in_bias), then short_conv(u, weight, bias, gate, silu, cu_seqlens, initial_state): x [tokens, in],
// in_weight [2·channels, in], in_bias [2·channels], the rest as short_conv's. Returns y [tokens, channels] and the final state.
// Differentiable in all but cu_seqlens. On a GPU the convolution's kernels add in_bias to their inputs and sum the gradient of in_bias.
std::tuple<Tensor, Tensor> projected_conv(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                                          const OptionalTensor& bias, const Tensor& cu_seqlens, const OptionalTensor& initial_state = {});
std::tuple<Tensor, Tensor> projected_conv_reference(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias,
                                                    const Tensor& weight, const OptionalTensor& bias, const Tensor& cu_seqlens,
                                                    const OptionalTensor& initial_state = {});
// The same for rows that continue from slots of a state, as short_conv_prefill does.
Tensor projected_conv_prefill(const Tensor& x, const Tensor& in_weight, const OptionalTensor& in_bias, const Tensor& weight,
                              const OptionalTensor& bias, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);

// The operators.
struct ProjectedConvLayer {
  const Tensor& x;
  const Tensor& in_weight;
  const OptionalTensor& in_bias;
  const Tensor& weight;
  const OptionalTensor& bias;
};
struct ProjectedConv {
  ProjectedConvLayer layer;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_state;
  BASED_OPERATOR("projected_conv -> y, state", layer.x, layer.in_weight, layer.in_bias, layer.weight, layer.bias, cu_seqlens, initial_state)
};
struct ProjectedConvPrefill {
  ProjectedConvLayer layer;
  const Tensor& cu_seqlens;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("projected_conv_prefill -> y", layer.x, layer.in_weight, layer.in_bias, layer.weight, layer.bias, cu_seqlens,
                 written(state), slots)
};
// The projection's product, then the convolution, as two operators.
Result<ProjectedConv> projected_conv_fallback(const ProjectedConv& in);
Tensor projected_conv_prefill_fallback(const ProjectedConvPrefill& in);

// Shapes and types of the projection. Throws Error.
void check_projected_conv(const ProjectedConvLayer& in);

}  // namespace based::ops
