// torch.ops.based.short_conv: depthwise causal convolution with a few taps, gated: the core of BaseConv (paper, appendix "Convolution").
#pragma once
#include <optional>
#include <tuple>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// y_t = act(bias + Σ_j weight[:, j] x_{t−taps+1+j}) ⊙ gate_t, act = SiLU where `silu`, else identity; no gate: 1.
// x, gate [tokens, channels] (may be column slices of a wider tensor), weight [channels, taps], bias [channels], cu_seqlens int64 [rows +
// 1], initial_state [rows, channels, taps − 1]: the inputs before the row, oldest first (zero where absent). Returns y and the final state.
// Differentiable in x, gate, weight, bias, initial_state.
std::tuple<Tensor, Tensor> short_conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                      const std::optional<Tensor>& gate, bool silu, const Tensor& cu_seqlens,
                                      const std::optional<Tensor>& initial_state = {});
std::tuple<Tensor, Tensor> short_conv_reference(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                                const std::optional<Tensor>& gate, bool silu, const Tensor& cu_seqlens,
                                                const std::optional<Tensor>& initial_state = {});

// The same for rows that go on from slots of a state [slots, channels, taps − 1]: row r's is that of slots[r], none twice. Where gradients
// are on, it is differentiable and the state is replaced; where they are off, and as torch.ops.based.short_conv_prefill, in place.
Tensor short_conv_prefill(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& gate,
                          bool silu, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);

// One token for each slot: x, gate [rows, channels]; state [slots, channels, taps − 1] is updated in place. No gradients.
Tensor short_conv_step(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& gate,
                       bool silu, Tensor& state, const Tensor& slots);

}  // namespace based::ops
