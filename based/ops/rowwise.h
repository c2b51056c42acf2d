// Functions of rows, each by itself: a row's bits depend on nothing but the row, where ATen's own treat the last elements of a tensor in
// another way than the others, or sum in an order that depends on the number of rows. A mixer's step is made of these.
// For fp32, bf16 (arithmetic in fp32) and fp64; results have x's type and shape. All differentiable; gradients are ATen's, within rounding.
#pragma once
#include <optional>

#include "based/kernels/activation.h"
#include "based/ops/torch.h"

namespace based::ops::rowwise {

using torch::Tensor;

// Of every number of x [rows, …].
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
Tensor gate(const Tensor& x, kernels::Activation function, const Gate& of = {});

// Over the last dimension of x [rows, …, width].
Tensor sum(const Tensor& x);                   // Σx [rows, …, 1]
Tensor l2_norm(const Tensor& x, double eps);   // x / √(Σx² + eps)
Tensor rms_norm(const Tensor& x, double eps);  // x / √(mean(x²) + eps): ops::rms_norm without a weight

}  // namespace based::ops::rowwise
