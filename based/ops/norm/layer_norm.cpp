#include "based/ops/norm/layer_norm.h"

#include <algorithm>
#include <array>

#include "based/ops/framework/on_device.h"
#include "based/ops/norm/norm_arguments.h"

namespace based::ops {
namespace {

using kernels::LayerNormLaunchers;

constexpr const char *kLayerNormOp = "layer_norm", *kLayerNormTwiceOp = "layer_norm_add_twice";

void check(const LayerNorm& in) { check_layer_norm(kLayerNormOp, in.x, in.weight, in.bias); }
void check(const LayerNormAdd& in) { check_layer_norm_sum("layer_norm_add", in.residual, in.x, in.weight, in.bias); }
void check(const LayerNormAddInPlace& in) {
  check_layer_norm_sum("layer_norm_add_", OptionalTensor(in.residual), in.x, in.weight, in.bias);
  require(in.residual.is_contiguous(), "layer_norm_add_", "residual must be contiguous");
}
void check(const LayerNormBackward& in) {
  check_layer_norm("layer_norm_backward", in.sum, in.weight, in.bias);
  if (in.grad_sum) require_type("layer_norm_backward", "grad_sum", *in.grad_sum, in.weight.scalar_type());
}

void check(const LayerNormAddTwice& in) {
  check_layer_norm_sum(kLayerNormTwiceOp, in.residual, in.x, in.weight, in.bias);
  require_like(kLayerNormTwiceOp, "next_weight", in.next_weight, in.weight);
  check_layer_norm(kLayerNormTwiceOp, in.residual ? *in.residual : in.x, in.next_weight, in.next_bias);
}

std::vector<int64_t> rows_of(const Tensor& x) { return x.sizes().slice(0, x.dim() - 1).vec(); }
Tensor empty_rows(const Tensor& x, const Tensor& weight) { return at::empty(rows_of(x), weight.options().dtype(sum_type(weight))); }

// The type that ATen's kernels compute in. Its CPU kernels store the means and add up the gradients of weight and bias in the type of their
// inputs, and how many rounding errors a sum in bf16 has depends on the processor's vectors, so bf16 is computed in fp32 there.
at::ScalarType aten_type(const Tensor& x, const Tensor& weight) { return x.is_cpu() ? sum_type(weight) : weight.scalar_type(); }

// By ATen, which is fast on every device for one norm alone.
Result<LayerNormForward> forward_reference(const LayerNorm& in) {
  check(in);
  const at::ScalarType type = aten_type(in.x, in.weight);
  auto [y, mean, inverse_std] = at::native_layer_norm(in.x.to(type), {in.x.size(-1)}, in.weight.to(type), in.bias.to(type), in.eps);
  const auto kept = [&](const Tensor& t) { return t.view(rows_of(in.x)).to(sum_type(in.weight)); };
  return {y.to(in.weight.scalar_type()), kept(mean), kept(inverse_std)};
}

Result<LayerNormForward> forward_meta(const LayerNorm& in) {
  check(in);
  return {at::empty(in.x.sizes(), in.weight.options()), empty_rows(in.x, in.weight), empty_rows(in.x, in.weight)};
}

Tensor empty_sum(const OptionalTensor& residual, const Tensor& x) {
  return at::empty(x.sizes(), residual ? residual->options() : x.options().dtype(sum_type(x)));
}

Result<LayerNormAddForward> add_forward_reference(const LayerNormAdd& in) {
  check(in);
  const Tensor sum = in.residual ? *in.residual + in.x : in.x.to(sum_type(in.x), /*non_blocking=*/false, /*copy=*/true);
  auto [y, mean, inverse_std] = forward_reference(LayerNorm{sum, in.weight, in.bias, in.eps});
  return {sum, std::move(y), std::move(mean), std::move(inverse_std)};
}

Result<LayerNormAddForward> add_forward_meta(const LayerNormAdd& in) {
  check(in);
  return {empty_sum(in.residual, in.x), at::empty(in.x.sizes(), in.weight.options()), empty_rows(in.x, in.weight),
          empty_rows(in.x, in.weight)};
}

Result<LayerNormBackward> backward_reference(const LayerNormBackward& in) {
  check(in);
  const at::ScalarType type = aten_type(in.sum, in.weight);
  std::vector<int64_t> kept = rows_of(in.sum);
  kept.push_back(1);
  const at::ScalarType mean_type = sum_type(in.weight);
  auto [grad_x, grad_weight, grad_bias] =
      at::native_layer_norm_backward(in.grad_y.to(type).contiguous(), in.sum.to(type), {in.sum.size(-1)}, in.mean.view(kept).to(mean_type),
                                     in.inverse_std.view(kept).to(mean_type), in.weight.to(type), in.bias.to(type), {true, true, true});
  if (in.grad_sum) grad_x.add_(*in.grad_sum);
  const at::ScalarType result_type = in.weight.scalar_type();
  return {grad_x.to(result_type), grad_weight.to(result_type), grad_bias.to(result_type)};
}

Result<LayerNormBackward> backward_meta(const LayerNormBackward& in) {
  check(in);
  const at::TensorOptions options = in.weight.options();
  return {at::empty(in.sum.sizes(), options), at::empty(in.weight.sizes(), options), at::empty(in.weight.sizes(), options)};
}

Tensor add_in_place_reference(const LayerNormAddInPlace& in) {
  check(in);
  in.residual.add_(in.x);
  return std::get<0>(forward_reference(LayerNorm{in.residual, in.weight, in.bias, in.eps}));
}

Tensor add_in_place_meta(const LayerNormAddInPlace& in) {
  check(in);
  return at::empty(in.residual.sizes(), in.weight.options());
}

Tensor no_sum(const Tensor& sum) { return at::empty({0}, sum.options()); }

// By layer_norm_add and its gradient, one norm after the other.
Result<LayerNormAddTwiceForward> twice_forward_reference(const LayerNormAddTwiceForward& forward) {
  const LayerNormAddTwice& in = forward.inputs;
  check(in);
  const auto [first_sum, added, mean, inverse_std] = call(LayerNormAddForward{{in.residual, in.x, in.weight, in.bias, in.eps}});
  const auto [sum, y, next_mean, next_inverse_std] = call(LayerNormAddForward{{first_sum, added, in.next_weight, in.next_bias, in.eps}});
  return {first_sum, in.keeps_sum ? sum : no_sum(sum), y, at::stack({mean, next_mean}), at::stack({inverse_std, next_inverse_std})};
}

Result<LayerNormAddTwiceBackward> twice_backward_reference(const LayerNormAddTwiceBackward& in) {
  const at::ScalarType type = in.weight.scalar_type();
  const Tensor unit = (in.first_sum - in.mean[0].unsqueeze(-1)) * in.inverse_std[0].unsqueeze(-1);
  const Tensor sum = in.first_sum + (unit * in.weight + in.bias).to(type);
  const auto [grad_sum, grad_next_weight, grad_next_bias] =
      call(LayerNormBackward{in.grad_sum, in.grad_y, sum, in.next_weight, in.next_bias, in.mean[1], in.inverse_std[1]});
  const auto [grad_x, grad_weight, grad_bias] =
      call(LayerNormBackward{grad_sum, grad_sum, in.first_sum, in.weight, in.bias, in.mean[0], in.inverse_std[0]});
  return {grad_x, grad_weight, grad_bias, grad_next_weight, grad_next_bias};
}

const LayerNormLaunchers* layer_norm_launchers(const char* op, const Tensor& x, const Tensor& weight) {
  const LayerNormLaunchers* table = launchers_of<LayerNormLaunchers>(x);
  const bool supported = table != nullptr && has_kernel(weight) && table->supports(weight.numel(), kernel_dtype(x), kernel_dtype(weight));
  return launchers_for<LayerNormLaunchers>(op, x, supported);
}

Tensor contiguous(const Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : Tensor(); }
const void* data_of(const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

// A norm's parameters, contiguous.
struct Parameters {
  Tensor weight, bias;
  Parameters(const Tensor& norm_weight, const Tensor& norm_bias) : weight(norm_weight.contiguous()), bias(norm_bias.contiguous()) {}
};

void set_statistics(kernels::LayerNorm& to, const Tensor& mean, const Tensor& inverse_std) {
  to.mean = mean.data_ptr<float>(), to.inverse_std = inverse_std.data_ptr<float>();
}

// The norm of in.x + added, which is stored in `sum`. `added` and `sum` may be undefined; in.x too, where there is a sum.
Result<LayerNormForward> launch_forward(const LayerNormLaunchers& table, const LayerNorm& in, const Tensor& added, const Tensor& sum,
                                        bool keeps_statistics) {
  const Tensor x = contiguous(in.x), add = contiguous(added);
  const Parameters parameters(in.weight, in.bias);
  const Tensor& rows = x.defined() ? x : sum;
  const Tensor y = at::empty(rows.sizes(), in.weight.options());
  kernels::LayerNorm to = layer_norm_of_rows(parameters, rows, in.eps);
  to.x = data_of(x), to.add = data_of(add), to.y = y.mutable_data_ptr();
  if (sum.defined()) to.sum = sum.mutable_data_ptr();
  Tensor mean, inverse_std;
  if (keeps_statistics) {
    mean = empty_rows(rows, in.weight), inverse_std = empty_rows(rows, in.weight);
    set_statistics(to, mean, inverse_std);
  }
  require_ok(table.forward(to, queue_of(rows)));
  return {y, mean, inverse_std};
}

Result<LayerNormForward> forward(const LayerNorm& in) {
  const LayerNormLaunchers* table = layer_norm_launchers(kLayerNormOp, in.x, in.weight);
  if (table == nullptr) return forward_reference(in);
  check(in);
  return launch_forward(*table, in, {}, {}, true);
}

Result<LayerNormAddForward> add_forward(const LayerNormAdd& in) {
  const LayerNormLaunchers* table = layer_norm_launchers(kLayerNormOp, in.residual ? *in.residual : in.x, in.weight);
  if (table == nullptr) return add_forward_reference(in);
  check(in);
  const Tensor sum = empty_sum(in.residual, in.x);
  const auto [y, mean, inverse_std] =
      launch_forward(*table, {value_or_undefined(in.residual), in.weight, in.bias, in.eps}, in.x, sum, true);
  return {sum, y, mean, inverse_std};
}

Tensor add_in_place(const LayerNormAddInPlace& in) {
  const LayerNormLaunchers* table = layer_norm_launchers(kLayerNormOp, in.residual, in.weight);
  if (table == nullptr) return add_in_place_reference(in);
  check(in);
  return std::get<0>(launch_forward(*table, {in.residual, in.weight, in.bias, in.eps}, in.x, in.residual, false));
}

Result<LayerNormBackward> backward(const LayerNormBackward& in) {
  const LayerNormLaunchers* table = layer_norm_launchers(kLayerNormOp, in.sum, in.weight);
  if (table == nullptr) return backward_reference(in);
  const Tensor grad_x = std::get<0>(backward_meta(in));  // which checks
  const Parameters parameters(in.weight, in.bias);
  const Tensor sum = in.sum.contiguous(), mean = in.mean.contiguous(), inverse_std = in.inverse_std.contiguous();
  const Tensor grad_y = in.grad_y.contiguous(), grad_sum = contiguous(value_or_undefined(in.grad_sum));
  const Tensor grad_weight = at::empty(in.weight.sizes(), in.weight.options().dtype(at::kFloat)), grad_bias = at::empty_like(grad_weight);
  kernels::LayerNormBackward to;
  to.forward = layer_norm_of_rows(parameters, sum, 0);
  to.forward.x = sum.const_data_ptr();
  set_statistics(to.forward, mean, inverse_std);
  to.grad_y = grad_y.const_data_ptr(), to.grad_sum = data_of(grad_sum), to.grad_x = grad_x.mutable_data_ptr();
  to.grad_weight = grad_weight.mutable_data_ptr<float>(), to.grad_bias = grad_bias.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table->backward_scratch(to), sum);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(sum)));
  return {grad_x, grad_weight.to(in.weight.scalar_type()), grad_bias.to(in.weight.scalar_type())};
}

Result<LayerNormAddTwiceForward> twice_forward(const LayerNormAddTwiceForward& forward) {
  const LayerNormAddTwice& in = forward.inputs;
  const LayerNormLaunchers* table = layer_norm_launchers(kLayerNormTwiceOp, in.residual ? *in.residual : in.x, in.weight);
  if (table == nullptr) return twice_forward_reference(forward);
  check(in);
  const Tensor residual = contiguous(value_or_undefined(in.residual)), x = in.x.contiguous();
  const Parameters parameters(in.weight, in.bias), next_parameters(in.next_weight, in.next_bias);
  const Tensor first_sum = empty_sum(if_defined(residual), x), y = at::empty_like(x);
  const Tensor sum = in.keeps_sum ? at::empty_like(first_sum) : no_sum(first_sum);
  std::vector<int64_t> statistics = x.sizes().vec();
  statistics.back() = 2, std::rotate(statistics.begin(), statistics.end() - 1, statistics.end());
  const Tensor mean = at::empty(statistics, in.weight.options().dtype(sum_type(in.weight))), inverse_std = at::empty_like(mean);
  kernels::LayerNormTwice to{layer_norm_of_rows(parameters, first_sum, in.eps), layer_norm_of_rows(next_parameters, first_sum, in.eps)};
  set_statistics(to.first, mean[0], inverse_std[0]), set_statistics(to.second, mean[1], inverse_std[1]);
  to.first.x = data_of(residual), to.first.add = x.const_data_ptr(), to.first.sum = first_sum.mutable_data_ptr();
  if (in.keeps_sum) to.second.sum = sum.mutable_data_ptr();
  to.second.y = y.mutable_data_ptr();
  require_ok(table->twice_forward(to, queue_of(x)));
  return {first_sum, sum, y, mean, inverse_std};
}

Result<LayerNormAddTwiceBackward> twice_backward(const LayerNormAddTwiceBackward& in) {
  const LayerNormLaunchers* table = layer_norm_launchers(kLayerNormTwiceOp, in.first_sum, in.weight);
  if (table == nullptr) return twice_backward_reference(in);
  const Tensor first_sum = in.first_sum.contiguous(), mean = in.mean.contiguous(), inverse_std = in.inverse_std.contiguous();
  const Parameters parameters(in.weight, in.bias), next_parameters(in.next_weight, in.next_bias);
  const Tensor grad_y = in.grad_y.contiguous(), grad_sum = contiguous(value_or_undefined(in.grad_sum));
  const Tensor grad_x = at::empty(first_sum.sizes(), in.weight.options());
  kernels::LayerNormTwiceBackward to;
  to.first = layer_norm_of_rows(parameters, first_sum, 0), to.second = layer_norm_of_rows(next_parameters, first_sum, 0);
  set_statistics(to.first, mean[0], inverse_std[0]), set_statistics(to.second, mean[1], inverse_std[1]);
  to.first.x = first_sum.const_data_ptr();
  to.grad_y = grad_y.const_data_ptr(), to.grad_sum = data_of(grad_sum), to.grad_x = grad_x.mutable_data_ptr();
  std::array<Tensor, 4> columns;  // the gradients of weight and bias of the first norm, then of the second
  for (Tensor& sum : columns) sum = at::empty(in.weight.sizes(), in.weight.options().dtype(at::kFloat));
  for (const size_t i : {0, 1}) {
    to.grad_weight[i] = columns[2 * i].mutable_data_ptr<float>(), to.grad_bias[i] = columns[2 * i + 1].mutable_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table->twice_backward_scratch(to), first_sum);
  require_ok(table->twice_backward(to, scratch.mutable_data_ptr(), queue_of(first_sum)));
  for (Tensor& sum : columns) sum = sum.to(in.weight.scalar_type());
  return {grad_x, columns[0], columns[1], columns[2], columns[3]};
}

// For LayerNormAddForward, whose sum is a result, and for LayerNormForward, whose sum is x. The gradients of residual and x are one tensor,
// of weight's type.
template <class Forward>
struct LayerNormFunction : torch::autograd::Function<LayerNormFunction<Forward>> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;
  static constexpr bool kAdds = std::is_same_v<Forward, LayerNormAddForward>;

  static Variables forward(Context* context, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["has_residual"] = residual.has_value();
    context->set_materialize_grads(false);
    if constexpr (kAdds) {
      const auto [sum, y, mean, inverse_std] = call(LayerNormAddForward{{residual, x, weight, bias, eps}});
      context->save_for_backward({sum, weight, bias, mean, inverse_std});
      return {sum, y};
    } else {
      const auto [y, mean, inverse_std] = call(LayerNormForward{{x, weight, bias, eps}});
      context->save_for_backward({x, weight, bias, mean, inverse_std});
      return {y};
    }
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &sum = saved[0], &weight = saved[1];
    const Tensor grad_y = grads.back().defined() ? grads.back() : at::zeros(sum.sizes(), weight.options());
    const OptionalTensor grad_sum = kAdds ? if_defined(grads[0]) : std::nullopt;
    auto [x, grad_weight, grad_bias] = call(LayerNormBackward{grad_sum, grad_y, sum, weight, saved[2], saved[3], saved[4]});
    if (!kAdds) x = x.to(sum.scalar_type());
    return {context->saved_data["has_residual"].toBool() ? x : Tensor(), x, grad_weight, grad_bias, Tensor()};
  }
};

Tensor norm(const LayerNorm& in) { return std::get<0>(call(LayerNormForward{in})); }

Tensor norm_autograd(const LayerNorm& in) {
  if (wants_gradient({in.x, in.weight, in.bias}))
    return LayerNormFunction<LayerNormForward>::apply(OptionalTensor(), in.x, in.weight, in.bias, in.eps)[0];
  const at::AutoDispatchBelowADInplaceOrView guard;
  return norm(in);
}

Result<LayerNormAdd> add(const LayerNormAdd& in) {
  auto [sum, y, mean, inverse_std] = call(LayerNormAddForward{in});
  return {std::move(sum), std::move(y)};
}

Result<LayerNormAdd> add_autograd(const LayerNormAdd& in) {
  if (!wants_gradient({value_or_undefined(in.residual), in.x, in.weight, in.bias})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return add(in);
  }
  const auto out = LayerNormFunction<LayerNormAddForward>::apply(in.residual, in.x, in.weight, in.bias, in.eps);
  out[0].grad_fn()->mutable_input_metadata(out[0].output_nr()).set_grad_dtype(in.weight.scalar_type());
  return {out[0], out[1]};
}

// The options of layer_norm_add_twice that are no tensors.
struct Options {
  double eps;
  bool keeps_sum;
};

// The gradients of residual and x are one tensor, of the weights' type.
struct LayerNormAddTwiceFunction : torch::autograd::Function<LayerNormAddTwiceFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& next_weight, const Tensor& next_bias, const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["has_residual"] = residual.has_value();
    context->set_materialize_grads(false);
    const auto [first_sum, sum, y, mean, inverse_std] =
        call(LayerNormAddTwiceForward{{residual, x, weight, bias, next_weight, next_bias, options.eps, options.keeps_sum}});
    context->save_for_backward({first_sum, weight, bias, next_weight, next_bias, mean, inverse_std});
    return {sum, y};
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables saved = context->get_saved_variables();
    const Tensor &sum = saved[0], &weight = saved[1];
    const Tensor grad_y = grads[1].defined() ? grads[1] : at::zeros(sum.sizes(), weight.options());
    const auto [x, grad_weight, grad_bias, grad_next_weight, grad_next_bias] =
        call(LayerNormAddTwiceBackward{if_defined(grads[0]), grad_y, sum, weight, saved[2], saved[3], saved[4], saved[5], saved[6]});
    return {
        context->saved_data["has_residual"].toBool() ? x : Tensor(), x, grad_weight, grad_bias, grad_next_weight, grad_next_bias, Tensor()};
  }
};

Result<LayerNormAddTwice> twice(const LayerNormAddTwice& in) {
  auto [first_sum, sum, y, mean, inverse_std] = call(LayerNormAddTwiceForward{in});
  return {std::move(sum), std::move(y)};
}

Result<LayerNormAddTwice> twice_autograd(const LayerNormAddTwice& in) {
  if (!wants_gradient({value_or_undefined(in.residual), in.x, in.weight, in.bias, in.next_weight, in.next_bias})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return twice(in);
  }
  // The CPU has no kernel that saves a pass. Both sums are saved there: to compute the second one again would cost more.
  if (in.x.is_cpu()) {
    check(in);
    const auto [first_sum, added] = layer_norm_add(in.residual, in.x, in.weight, in.bias, in.eps);
    const auto [sum, y] = layer_norm_add(first_sum, added, in.next_weight, in.next_bias, in.eps);
    return {in.keeps_sum ? sum : no_sum(sum), y};
  }
  const auto out =
      LayerNormAddTwiceFunction::apply(in.residual, in.x, in.weight, in.bias, in.next_weight, in.next_bias, Options{in.eps, in.keeps_sum});
  out[0].grad_fn()->mutable_input_metadata(out[0].output_nr()).set_grad_dtype(in.weight.scalar_type());
  return {out[0], out[1]};
}

Result<LayerNorm> layer_norm_named_reference(const LayerNorm& in) { return layer_norm_reference(in.x, in.weight, in.bias, in.eps); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<LayerNorm>(m).reference<norm>().named_reference<layer_norm_named_reference>().autograd<norm_autograd>();
  define<LayerNormForward>(m)
      .reference<on_inputs<LayerNormForward, forward_reference>>()
      .meta<on_inputs<LayerNormForward, forward_meta>>()
      .kernel<on_inputs<LayerNormForward, forward>>();
  define<LayerNormAdd>(m).reference<add>().autograd<add_autograd>();
  define<LayerNormAddForward>(m)
      .reference<on_inputs<LayerNormAddForward, add_forward_reference>>()
      .meta<on_inputs<LayerNormAddForward, add_forward_meta>>()
      .kernel<on_inputs<LayerNormAddForward, add_forward>>();
  define<LayerNormBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
  define<LayerNormAddInPlace>(m).reference<add_in_place_reference>().meta<add_in_place_meta>().kernel<add_in_place>().without_gradient();
  define<LayerNormAddTwice>(m).reference<twice>().autograd<twice_autograd>();
  define<LayerNormAddTwiceForward>(m).reference<twice_forward_reference>().kernel<twice_forward>();
  define<LayerNormAddTwiceBackward>(m).reference<twice_backward_reference>().kernel<twice_backward>();
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) { return call(LayerNorm{x, weight, bias, eps}); }

Tensor layer_norm_reference(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(LayerNorm{x, weight, bias, eps});
  const at::ScalarType type = sum_type(x);
  const Tensor wide = x.to(type), centred = wide - wide.mean(-1, /*keepdim=*/true);
  const Tensor unit = centred * (centred.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return (unit * weight.to(type) + bias.to(type)).to(weight.scalar_type());
}

std::tuple<Tensor, Tensor> layer_norm_add(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                          double eps) {
  return call(LayerNormAdd{residual, x, weight, bias, eps});
}

Tensor layer_norm_add_(const Tensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return call(LayerNormAddInPlace{residual, x, weight, bias, eps});
}

Result<LayerNormAddTwice> layer_norm_add_twice(const LayerNormAddTwice& in) { return call(in); }

}  // namespace based::ops
