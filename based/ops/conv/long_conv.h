// torch.ops.based_cpp.long_conv: causal convolution with a filter as long as the sequence, by FFT in O(N log N).
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

// y_t = Σ_{j<taps} filter[:, j] x_{t−j}. x [tokens, channels], filter [channels, taps], cu_seqlens int64 [rows + 1]. Rows may be preceded
// by history: cu_history int64 [rows + 1] and history [sum, channels] hold the inputs before each row. Never wraps. Differentiable.
Tensor long_conv(const Tensor& x, const Tensor& filter, const Tensor& cu_seqlens, const OptionalTensor& history = {},
                 const OptionalTensor& cu_history = {});
Tensor long_conv_reference(const Tensor& x, const Tensor& filter, const Tensor& cu_seqlens, const OptionalTensor& history = {},
                           const OptionalTensor& cu_history = {});

// The same in ATen for rows of one length, x [rows, length, channels]: no offsets are read.
Tensor long_conv_of_batch(const Tensor& x, const Tensor& filter);

// The operator.
struct LongConv {
  const Tensor& x;
  const Tensor& filter;
  const Tensor& cu_seqlens;
  const OptionalTensor& history;
  const OptionalTensor& cu_history;
  BASED_OPERATOR("long_conv -> y", x, filter, cu_seqlens, history, cu_history)
};

}  // namespace based::ops
