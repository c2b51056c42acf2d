// The hidden layer of a gated MLP where a kernel makes it at once: for more rows than a step of decoding has.
#pragma once
#include "based/ops/torch.h"

namespace based::ops {

// x [rows, in], weight [2·width, in].
bool gated_hidden_supports(const at::Tensor& x, const at::Tensor& weight);
// swiglu(x·weightᵀ) [rows, width]; h becomes x·weightᵀ [rows, 2·width], where it is wanted.
at::Tensor gated_hidden(const at::Tensor& x, const at::Tensor& weight, at::Tensor* h = nullptr);

}  // namespace based::ops
