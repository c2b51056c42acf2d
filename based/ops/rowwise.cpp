#include "based/ops/rowwise.h"

#include <cmath>

#include "based/kernels/activation.h"
#include "based/ops/operator.h"
#include "based/ops/rms_norm.h"

namespace based::ops {
namespace {

using kernels::Activation;

struct RowwiseActivation {
  const Tensor& x;
  int64_t function;  // an Activation
  BASED_OPERATOR("rowwise_activation -> y", x, function)
};
// ATen's softplus is x above this: e^−40 is less than half a unit in the last place, in fp64 too.
constexpr double kLinear = 40;

void check(const RowwiseActivation& in) {
  constexpr const char* op = "rowwise_activation";
  const auto& [x, function] = in;
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require(x.dim() >= 1, op, "x must have rows, got a single number");
  require(function >= 0 && function <= static_cast<int64_t>(Activation::exp), op, "function must be 0..3, got ", function);
}

// On a GPU a number is computed in the same way wherever it lies.
Tensor activation_reference(const RowwiseActivation& in) {
  check(in);
  const auto& [x, function] = in;
  switch (static_cast<Activation>(function)) {
    case Activation::silu: return at::silu(x);
    case Activation::sigmoid: return at::sigmoid(x);
    case Activation::softplus: return at::softplus(x, 1, kLinear);
    default: return at::exp(x);
  }
}

Tensor activation_meta(const RowwiseActivation& in) {
  check(in);
  return at::empty(in.x.sizes(), in.x.options());
}

Tensor activation_cpu(const RowwiseActivation& op) {
  check(op);
  const auto& [x, function] = op;
  const Tensor in = x.contiguous(), y = at::empty(x.sizes(), x.options());
  const int64_t rows = x.size(0);
  if (!has_kernel(x)) {
    for (int64_t row = 0; row < rows; ++row) y[row].copy_(activation_reference({in.narrow(0, row, 1), function})[0]);
    return y;
  }
  require_ok(kernels::cpu::activate({in.const_data_ptr(), y.mutable_data_ptr(), rows, rows == 0 ? 0 : x.numel() / rows, kernel_dtype(x),
                                     static_cast<Activation>(function)}));
  return y;
}

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, int64_t function) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor y = call(RowwiseActivation{x, function});
    context->save_for_backward({x, y});
    context->saved_data["function"] = function;
    return y;
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &grad = grads[0], &x = saved[0], &y = saved[1];
    switch (static_cast<Activation>(context->saved_data["function"].toInt())) {
      case Activation::silu: return {at::silu_backward(grad, x), {}};
      case Activation::sigmoid: return {at::sigmoid_backward(grad, y), {}};
      case Activation::softplus: return {at::softplus_backward(grad, x, 1, kLinear), {}};
      default: return {grad * y, {}};
    }
  }
};

Tensor activation_autograd(const RowwiseActivation& in) {
  if (wants_gradient({in.x})) return ActivationFunction::apply(in.x, in.function);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

// Over the last dimension, which stays: halves are added to halves.
Tensor sum_of(Tensor sum) {
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
  if (!has_kernel(x)) return x * scale / (sum_of(x.square()) / static_cast<double>(width) + eps).sqrt();
  return ops::rms_norm(x, at::full({width}, scale, x.options().dtype(sum_type(x)).requires_grad(false)), eps).to(x.scalar_type());
}

Tensor activation(const Tensor& x, Activation function) { return call(RowwiseActivation{x, static_cast<int64_t>(function)}); }

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<RowwiseActivation>(m)
      .reference<activation_reference>()
      .meta<activation_meta>()
      .cpu<activation_cpu>()
      .autograd<activation_autograd>();
}

}  // namespace

namespace rowwise {

Tensor silu(const Tensor& x) { return activation(x, Activation::silu); }
Tensor sigmoid(const Tensor& x) { return activation(x, Activation::sigmoid); }
Tensor softplus(const Tensor& x) { return activation(x, Activation::softplus); }
Tensor exp(const Tensor& x) { return activation(x, Activation::exp); }

Tensor sum(const Tensor& x) {
  require(x.dim() >= 1 && x.size(-1) >= 1, "rowwise sum", "x must have a last dimension of at least 1, got ", x.sizes());
  return sum_of(x.to(sum_type(x))).to(x.scalar_type());
}

Tensor l2_norm(const Tensor& x, double eps) {
  const auto width = static_cast<double>(x.dim() >= 1 ? x.size(-1) : 0);
  return normalised(x, 1 / std::sqrt(width), eps / width);
}

Tensor rms_norm(const Tensor& x, double eps) { return normalised(x, 1, eps); }

}  // namespace rowwise
}  // namespace based::ops
