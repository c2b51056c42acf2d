#include "based/ops/rowwise.h"

#include <cmath>

#include "based/ops/rms_norm.h"
#include "based/ops/rowwise_activation.h"

namespace based::ops {
namespace {

using kernels::Activation;

// ATen's softplus is x above this: e^−40 is less than half a unit in the last place, in fp64 too.
constexpr double kLinear = 40;

void check(const RowwiseActivation& in) {
  constexpr const char* op = "rowwise_activation";
  const auto& [x, function, scale, bias, log_rate, in_sums] = in;
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require(x.dim() >= 1, op, "x must have rows, got a single number");
  require(function >= 0 && function <= static_cast<int64_t>(Activation::elu_plus_one), op, "function must be 0..5, got ", function);
  for (const auto& [name, factors] : {std::pair{"bias", bias}, {"log_rate", log_rate}}) {
    if (!factors) continue;
    require(x.dim() <= 2, op, name, " goes with x of [rows, width], got ", x.sizes());
    require(factors->scalar_type() == x.scalar_type() || factors->scalar_type() == sum_type(x), op, name, " must be ", x.scalar_type(),
            " or ", sum_type(x), ", got ", factors->scalar_type());
    require_shape(op, name, *factors, {x.dim() == 1 ? 1 : x.size(-1)});
  }
}

at::ScalarType type_of(const RowwiseActivation& in) { return in.in_sums ? sum_type(in.x) : in.x.scalar_type(); }

// On a GPU a number is computed in the same way wherever it lies.
Tensor value_of(int64_t function, const Tensor& x) {
  switch (static_cast<Activation>(function)) {
    case Activation::silu: return at::silu(x);
    case Activation::sigmoid: return at::sigmoid(x);
    case Activation::softplus: return at::softplus(x, 1, kLinear);
    case Activation::exp: return at::exp(x);
    case Activation::elu_plus_one: return at::where(x > 0, x + 1, at::exp(x.clamp_max(0)));
    default: return at::log_sigmoid(x);
  }
}

}  // namespace

Tensor rowwise_activation_reference(const RowwiseActivation& in) {
  check(in);
  const at::ScalarType type = sum_type(in.x);
  const Tensor x = in.x.to(type), y = value_of(in.function, in.bias ? x + in.bias->to(type) : x) * in.scale;
  return (in.log_rate ? y * in.log_rate->to(type).exp() : y).to(type_of(in));
}

namespace {

Tensor activation_meta(const RowwiseActivation& in) {
  check(in);
  return at::empty(in.x.sizes(), in.x.options().dtype(type_of(in)));
}

Tensor activation_by_row(const RowwiseActivation& in) {
  const Tensor y = activation_meta(in);
  for (int64_t row = 0; row < in.x.size(0); ++row)
    y[row].copy_(rowwise_activation_reference({in.x.narrow(0, row, 1), in.function, in.scale, in.bias, in.log_rate, in.in_sums})[0]);
  return y;
}

}  // namespace

Tensor rowwise_activation_with(kernels::Status (*kernel)(const kernels::Activate&), const RowwiseActivation& in) {
  check(in);
  const bool apart = in.x.dim() == 2 && in.x.stride(1) == 1;
  const Tensor x = apart ? in.x : in.x.contiguous(), y = activation_meta(in);
  const auto laid = [&](const OptionalTensor& factors) { return factors ? factors->contiguous() : Tensor(); };
  Tensor bias = laid(in.bias), log_rate = laid(in.log_rate);
  if (bias.defined() && log_rate.defined() && bias.scalar_type() != log_rate.scalar_type())
    bias = bias.to(sum_type(x)), log_rate = log_rate.to(sum_type(x));
  kernels::Activate to;
  to.x = x.const_data_ptr(), to.y = y.mutable_data_ptr(), to.rows = x.size(0), to.width = to.rows == 0 ? 0 : x.numel() / to.rows;
  to.x_stride = apart ? x.stride(0) : to.width;
  to.dtype = kernel_dtype(x), to.y_dtype = kernel_dtype(y);
  for (const auto& [place, factors] : {std::pair{&to.bias, bias}, {&to.log_rate, log_rate}})
    if (factors.defined()) *place = factors.const_data_ptr(), to.factor_dtype = kernel_dtype(factors);
  to.function = static_cast<Activation>(in.function), to.scale = static_cast<float>(in.scale);
  require_ok(kernel(to));
  return y;
}

namespace {

// Of calls without bias and log_rate.
struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, int64_t function, double scale, bool in_sums) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor y = call(RowwiseActivation{x, function, scale, {}, {}, in_sums});
    context->save_for_backward({x});
    context->saved_data["function"] = function;
    context->saved_data["scale"] = scale;
    return y;
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Tensor saved = context->get_saved_variables()[0], x = saved.to(grads[0].scalar_type());
    const double scale = context->saved_data["scale"].toDouble();
    const Tensor grad = scale == 1 ? grads[0] : grads[0] * scale;
    const auto of_x = [&] {
      switch (static_cast<Activation>(context->saved_data["function"].toInt())) {
        case Activation::silu: return at::silu_backward(grad, x);
        case Activation::sigmoid: return at::sigmoid_backward(grad, at::sigmoid(x));
        case Activation::softplus: return at::softplus_backward(grad, x, 1, kLinear);
        case Activation::exp: return grad * at::exp(x);
        case Activation::elu_plus_one: return at::elu_backward(grad, 1, 1, 1, /*is_result=*/false, x);
        default: return grad * at::sigmoid(-x);
      }
    };
    return {of_x().to(saved.scalar_type()), {}, {}, {}};
  }
};

Tensor activation_autograd(const RowwiseActivation& in) {
  if (!wants_gradient({in.x, value_or_undefined(in.bias), value_or_undefined(in.log_rate)})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call(in);
  }
  check(in);
  const at::ScalarType type = sum_type(in.x);
  const Tensor x = in.bias ? in.x.to(type) + in.bias->to(type) : in.x;
  const Tensor y = ActivationFunction::apply(x, in.function, in.scale, in.in_sums || in.log_rate);
  return in.log_rate ? (y * in.log_rate->to(type).exp()).to(type_of(in)) : y.to(type_of(in));
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

Tensor sum_of_rows(const Tensor& x) { return sum_of(x.to(sum_type(x))).to(x.scalar_type()); }

// The gradient is laid over the row as it is, where ATen would add up those of the halves.
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

Tensor activation(const Tensor& x, Activation function) {
  return call(RowwiseActivation{x, static_cast<int64_t>(function), 1, {}, {}, false});
}

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<RowwiseActivation>(m)
      .reference<rowwise_activation_reference>()
      .meta<activation_meta>()
      .cpu<[](const RowwiseActivation& in) {
        return has_kernel(in.x) ? rowwise_activation_with(kernels::cpu::activate, in) : activation_by_row(in);
      }>()
      .autograd<activation_autograd>();
}

}  // namespace

namespace rowwise {

Tensor silu(const Tensor& x) { return activation(x, Activation::silu); }
Tensor sigmoid(const Tensor& x) { return activation(x, Activation::sigmoid); }
Tensor softplus(const Tensor& x) { return activation(x, Activation::softplus); }
Tensor exp(const Tensor& x) { return activation(x, Activation::exp); }
Tensor elu_plus_one(const Tensor& x) { return activation(x, Activation::elu_plus_one); }

Tensor gate(const Tensor& x, Activation function, const Gate& of) {
  return call(RowwiseActivation{x, static_cast<int64_t>(function), of.scale, of.bias, of.log_rate, true});
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
