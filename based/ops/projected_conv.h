// BaseConv's first half (paper, appendix "Convolution"): a projection and the gated short convolution of what it gives.
#pragma once
#include <optional>
#include <tuple>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// [u, gate] = linear(x, in_weight, in_bias), then short_conv(u, weight, bias, gate, silu, cu_seqlens, initial_state): x [tokens, in],
// in_weight [2·channels, in], in_bias [2·channels], the rest as short_conv's. Returns y [tokens, channels] and the final state.
// Differentiable in all but cu_seqlens. On a GPU the convolution adds in_bias to what it reads, and its gradients are added up to that of
// in_bias while they are written.
std::tuple<Tensor, Tensor> projected_conv(const Tensor& x, const Tensor& in_weight, const std::optional<Tensor>& in_bias,
                                          const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& cu_seqlens,
                                          const std::optional<Tensor>& initial_state = {});
// By a product, then a convolution.
std::tuple<Tensor, Tensor> projected_conv_by_parts(const Tensor& x, const Tensor& in_weight, const std::optional<Tensor>& in_bias,
                                                   const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& cu_seqlens,
                                                   const std::optional<Tensor>& initial_state);
std::tuple<Tensor, Tensor> projected_conv_reference(const Tensor& x, const Tensor& in_weight, const std::optional<Tensor>& in_bias,
                                                    const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& cu_seqlens,
                                                    const std::optional<Tensor>& initial_state = {});

// The same for rows that go on from slots of a state, as short_conv_prefill does.
Tensor projected_conv_prefill(const Tensor& x, const Tensor& in_weight, const std::optional<Tensor>& in_bias, const Tensor& weight,
                              const std::optional<Tensor>& bias, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);
Tensor projected_conv_prefill_by_parts(const Tensor& x, const Tensor& in_weight, const std::optional<Tensor>& in_bias, const Tensor& weight,
                                       const std::optional<Tensor>& bias, const Tensor& cu_seqlens, Tensor state, const Tensor& slots);

// Shapes and types of the projection. Throws Error.
void check_projected_conv(const Tensor& x, const Tensor& in_weight, const std::optional<Tensor>& in_bias, const Tensor& weight);

}  // namespace based::ops
