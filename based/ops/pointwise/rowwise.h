// Functions of rows: the bits of a row's result depend on that row alone. ATen's functions lack this property: they process the last
// elements of a tensor with other instructions, or sum in an order that depends on the number of rows. The steps of mixers use these
// instead. For fp32, bf16 (arithmetic in fp32) and fp64; results have x's type and shape. All differentiable; gradients are ATen's, within
// rounding.
#pragma once
#include <optional>

#include "based/kernels/pointwise/activation.h"
#include "based/runtime/torch.h"

namespace based::ops::rowwise {

using torch::Tensor;

// Applied to every number of x [rows, …].
Tensor silu(const Tensor& x);      // x / (1 + e^−x)
Tensor sigmoid(const Tensor& x);   // 1 / (1 + e^−x)
Tensor softplus(const Tensor& x);  // log(1 + e^x)
Tensor exp(const Tensor& x);
Tensor elu_plus_one(const Tensor& x);  // x + 1 above 0, e^x below

// A recurrence's gate, in the type of sums: function(x + bias) · scale · e^log_rate, of x [rows, …, width].
struct Gate {
  double scale = 1;
  std::optional<Tensor> bias = {}, log_rate = {};  // [width], of x's type or that of sums; absent: 0
};
Tensor gate(const Tensor& x, kernels::Activation function, const Gate& factors = {});

// Reductions over the last dimension of x [rows, …, width].
Tensor sum(const Tensor& x);                   // Σx [rows, …, 1]
Tensor l2_norm(const Tensor& x, double eps);   // x / √(Σx² + eps)
Tensor rms_norm(const Tensor& x, double eps);  // x / √(mean(x²) + eps): ops::rms_norm without a weight

}  // namespace based::ops::rowwise
