// torch.ops.based_cpp.short_conv: depthwise causal convolution with a few taps, gated: the core of BaseConv (paper, appendix
// "Convolution").
#pragma once
#include <optional>
#include <tuple>

#include "based/kernels/conv/short_conv.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// y_t = act(bias + Σ_j weight[:, j] x_{t−taps+1+j}) ⊙ gate_t, act = SiLU where `silu`, else identity; no gate: 1.
// x, gate [tokens, channels] (may be column slices of a wider tensor), weight [channels, taps], bias [channels], cu_seqlens int64 [rows +
// 1], initial_state [rows, channels, taps − 1]: the inputs before the row, oldest first (zero where absent). Returns y and the final state.
// With `adds_input`, x_t is added to y_t. Differentiable in x, gate, weight, bias, initial_state.
std::tuple<Tensor, Tensor> short_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate,
                                      bool silu, const Tensor& cu_seqlens, const OptionalTensor& initial_state = {},
                                      bool adds_input = false);
std::tuple<Tensor, Tensor> short_conv_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                                const OptionalTensor& gate, bool silu, const Tensor& cu_seqlens,
                                                const OptionalTensor& initial_state = {}, bool adds_input = false);

// The same for rows that continue from slots of a state [slots, channels, taps − 1]: row r continues from slots[r], none twice. Where
// gradients are on, the function is differentiable and replaces the state. Where they are off, and as
// torch.ops.based_cpp.short_conv_prefill, it updates the state in place.
Tensor short_conv_prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                          const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);

// One token for each slot: x, gate [rows, channels]; state [slots, channels, taps − 1] is updated in place. No gradients.
Tensor short_conv_step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                       Tensor& state, const Tensor& slots);

// The same for the first `tokens` rows, consecutive tokens of the sequence at slots[0], at most kernels::kShortConvStepTokens. The state
// after each of them but the last is written to `kept`, [tokens − 1 or more, channels, taps − 1], unless it has no rows. Rows of the result
// after the tokens repeat the last one.
Tensor short_conv_tokens(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                         int64_t tokens, Tensor& state, const Tensor& slots, const Tensor& kept);

// The operators.
struct ShortConvLayer {
  const Tensor& x;
  const Tensor& weight;
  const OptionalTensor& bias;
  const OptionalTensor& gate;
  bool silu;
};
struct ShortConv {
  ShortConvLayer layer;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_state;
  bool adds_input = false;
  BASED_OPERATOR("short_conv -> y, state", layer.x, layer.weight, layer.bias, layer.gate, layer.silu, cu_seqlens, initial_state,
                 or_else(adds_input, false))
};
struct ShortConvBackward {
  const Tensor& grad_y;
  const OptionalTensor& grad_state;
  ShortConv forward;
  BASED_OPERATOR("short_conv_backward -> grad_x, grad_weight, grad_bias, grad_gate, grad_initial_state", grad_y, grad_state,
                 forward.layer.x, forward.layer.weight, forward.layer.bias, forward.layer.gate, forward.layer.silu, forward.cu_seqlens,
                 forward.initial_state, or_else(forward.adds_input, false))
};
struct ShortConvPrefill {
  ShortConvLayer layer;
  const Tensor& cu_seqlens;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("short_conv_prefill -> y", layer.x, layer.weight, layer.bias, layer.gate, layer.silu, cu_seqlens, written(state), slots)
};
struct ShortConvStep {
  ShortConvLayer layer;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("short_conv_step -> y", layer.x, layer.weight, layer.bias, layer.gate, layer.silu, written(state), slots)
};
// slots int64 [1] (framework/tokens_step.h).
struct ShortConvTokens {
  ShortConvLayer layer;
  const Tensor& state;
  const Tensor& slots;
  const Tensor& kept_state;
  int64_t tokens;
  BASED_OPERATOR("short_conv_tokens -> y", layer.x, layer.weight, layer.bias, layer.gate, layer.silu, written(state), slots,
                 written(kept_state), tokens)
};

// Internal to based/ops: the operators for x and gate without the projection's bias, in_bias [2·channels], which a GPU's kernels add.
Result<ShortConv> short_conv_with_input_bias(const ShortConv& in, const Tensor& in_bias);
Tensor short_conv_prefill_with_input_bias(const ShortConvPrefill& in, const Tensor& in_bias);
// `sums`, if not null and where the kernel computes it, becomes [2·channels]: the gradients of x and of the gate, summed over all tokens in
// fp32.
Result<ShortConvBackward> short_conv_backward_with_input_bias(const ShortConvBackward& in, const Tensor& in_bias, Tensor* sums);
// The operator's gradients, that of x in `grad_x`, [tokens, channels], rows any distance apart. Without a gate.
Result<ShortConvBackward> short_conv_backward_to(const ShortConvBackward& in, const Tensor& grad_x);

// The kernels' arguments for steps whose tensors are contiguous.
kernels::ShortConv short_conv_step_arguments(const ShortConvStep& in, const Tensor& y);
kernels::ShortConvTokens short_conv_tokens_arguments(const ShortConvTokens& in, const Tensor& y);

}  // namespace based::ops
