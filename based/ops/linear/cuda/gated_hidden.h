// The hidden layer of a gated MLP in one kernel, for more rows than a step of decoding has.
#pragma once
#include "based/runtime/torch.h"

namespace based::ops {

// x [rows, in], weight [2·width, in].
bool gated_hidden_supports(const at::Tensor& x, const at::Tensor& weight);
// swiglu(x·weightᵀ) [rows, width]; h, unless null, becomes x·weightᵀ [rows, 2·width].
at::Tensor gated_hidden(const at::Tensor& x, const at::Tensor& weight, at::Tensor* h = nullptr);

}  // namespace based::ops
