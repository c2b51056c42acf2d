#include "based/ops/pointwise/rowwise.h"

#include <cmath>

#include "based/ops/norm/rms_norm.h"
#include "based/ops/pointwise/rowwise_activation.h"

namespace based::ops {
namespace {

using kernels::Activation;

// The sum over the last dimension, which is kept with size 1: one half of it is added to the other, again and again.
Tensor sum_last(Tensor sum) {
  while (sum.size(-1) > 1) {
    const int64_t width = sum.size(-1), half = (width + 1) / 2;
    const Tensor first = sum.narrow(-1, 0, width / 2) + sum.narrow(-1, half, width / 2);
    sum = width % 2 == 0 ? first : at::cat({first, sum.narrow(-1, width / 2, 1)}, -1);
  }
  return sum;
}

// x · scale / √(mean(x²) + eps). A scale of its own type, fp32 for bf16, is not rounded.
Tensor normalised(const Tensor& x, double scale, double eps) {
  require(x.dim() >= 1 && x.size(-1) >= 1, "rowwise norm", "x must have a last dimension of at least 1, got ", x.sizes());
  const int64_t width = x.size(-1);
  if (!has_kernel(x)) return x * scale / (sum_last(x.square()) / static_cast<double>(width) + eps).sqrt();
  return ops::rms_norm(x, at::full({width}, scale, x.options().dtype(sum_type(x)).requires_grad(false)), eps).to(x.scalar_type());
}

Tensor sum_of_rows(const Tensor& x) { return sum_last(x.to(sum_type(x))).to(x.scalar_type()); }

// Its gradient is grad_y, expanded over the row. ATen would add up the gradients of the halves instead.
struct SumFunction : torch::autograd::Function<SumFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["sizes"] = x.sizes();
    return sum_of_rows(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& grads) {
    return {grads[0].expand(context->saved_data["sizes"].toIntVector())};
  }
};

}  // namespace

namespace rowwise {

Tensor silu(const Tensor& x) { return rowwise_activation(x, Activation::silu); }
Tensor sigmoid(const Tensor& x) { return rowwise_activation(x, Activation::sigmoid); }
Tensor softplus(const Tensor& x) { return rowwise_activation(x, Activation::softplus); }
Tensor exp(const Tensor& x) { return rowwise_activation(x, Activation::exp); }
Tensor elu_plus_one(const Tensor& x) { return rowwise_activation(x, Activation::elu_plus_one); }

Tensor gate(const Tensor& x, Activation function, const Gate& factors) {
  return call(RowwiseActivation{x, static_cast<int64_t>(function), factors.scale, factors.bias, factors.log_rate, true});
}

Tensor sum(const Tensor& x) {
  require(x.dim() >= 1 && x.size(-1) >= 1, "rowwise sum", "x must have a last dimension of at least 1, got ", x.sizes());
  return wants_gradient({x}) ? SumFunction::apply(x) : sum_of_rows(x);
}

Tensor l2_norm(const Tensor& x, double eps) {
  const auto width = static_cast<double>(x.dim() >= 1 ? x.size(-1) : 0);
  return normalised(x, 1 / std::sqrt(width), eps / width);
}

Tensor rms_norm(const Tensor& x, double eps) { return normalised(x, 1, eps); }

}  // namespace rowwise
}  // namespace based::ops
