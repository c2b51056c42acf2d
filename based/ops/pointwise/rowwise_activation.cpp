#include "based/ops/pointwise/rowwise_activation.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/pointwise/pointwise_arguments.h"

namespace based::ops {
namespace {

using kernels::Activation;

// ATen's softplus is x above this: e^−40 is less than half a unit in the last place, in fp64 too.
constexpr double kLinear = 40;

void check(const RowwiseActivation& in) { check_rowwise_activation(in); }

at::ScalarType type_of(const RowwiseActivation& in) { return in.in_sums ? sum_type(in.x) : in.x.scalar_type(); }

// On a GPU the result for a number does not depend on its place in the tensor.
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

Tensor reference(const RowwiseActivation& in) {
  check(in);
  const at::ScalarType type = sum_type(in.x);
  const Tensor x = in.x.to(type), y = value_of(in.function, in.bias ? x + in.bias->to(type) : x) * in.scale;
  return (in.log_rate ? y * in.log_rate->to(type).exp() : y).to(type_of(in));
}

Tensor meta(const RowwiseActivation& in) {
  check(in);
  return at::empty(in.x.sizes(), in.x.options().dtype(type_of(in)));
}

Tensor by_row(const RowwiseActivation& in) {
  const Tensor y = meta(in);
  for (int64_t row = 0; row < in.x.size(0); ++row)
    y[row].copy_(reference(RowwiseActivation{in.x.narrow(0, row, 1), in.function, in.scale, in.bias, in.log_rate, in.in_sums})[0]);
  return y;
}

Tensor forward(const RowwiseActivation& in) {
  const auto* table = launchers_of<kernels::ActivationLaunchers>(in.x);
  if (table == nullptr) return in.x.is_cpu() ? by_row(in) : reference(in);
  check(in);
  const bool has_row_stride = in.x.dim() == 2 && in.x.stride(1) == 1;
  const Tensor x = has_row_stride ? in.x : in.x.contiguous(), y = meta(in);
  const auto contiguous = [](const OptionalTensor& factors) { return factors ? OptionalTensor(factors->contiguous()) : std::nullopt; };
  OptionalTensor bias = contiguous(in.bias), log_rate = contiguous(in.log_rate);
  if (bias && log_rate && bias->scalar_type() != log_rate->scalar_type())
    bias = bias->to(sum_type(x)), log_rate = log_rate->to(sum_type(x));
  require_ok(table->activate(activate_arguments(RowwiseActivation{x, in.function, in.scale, bias, log_rate, in.in_sums}, y), queue_of(x)));
  return y;
}

// The gradient of calls without bias and log_rate.
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
    const auto grad_x = [&] {
      switch (static_cast<Activation>(context->saved_data["function"].toInt())) {
        case Activation::silu: return at::silu_backward(grad, x);
        case Activation::sigmoid: return at::sigmoid_backward(grad, at::sigmoid(x));
        case Activation::softplus: return at::softplus_backward(grad, x, 1, kLinear);
        case Activation::exp: return grad * at::exp(x);
        case Activation::elu_plus_one: return at::elu_backward(grad, 1, 1, 1, /*is_result=*/false, x);
        default: return grad * at::sigmoid(-x);
      }
    };
    return {grad_x().to(saved.scalar_type()), {}, {}, {}};
  }
};

Tensor autograd(const RowwiseActivation& in) {
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

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<RowwiseActivation>(m).reference<reference>().meta<meta>().kernel<forward>().autograd<autograd>();
}

}  // namespace

Tensor rowwise_activation(const Tensor& x, Activation function) {
  return call(RowwiseActivation{x, static_cast<int64_t>(function), 1, {}, {}, false});
}

}  // namespace based::ops
