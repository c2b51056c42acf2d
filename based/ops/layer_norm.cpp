#include "based/ops/layer_norm.h"

namespace based::ops {

void check_layer_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require(x.dim() >= 1 && x.size(-1) >= 1, op, "x must have a last dimension of at least 1, got ", x.sizes());
  require(at::isFloatingType(weight.scalar_type()), op, "weight must be floating, got ", weight.scalar_type());
  require_shape(op, "weight", weight, {x.size(-1)});
  require_like(op, "bias", bias, weight);
  require_shape(op, "bias", bias, {x.size(-1)});
}

void check_layer_norm_of_sum(const char* op, const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_layer_norm(op, residual ? *residual : x, weight, bias);
  if (residual) require_shape(op, "x", x, residual->sizes());
  require_type(op, "x", x, weight.scalar_type());
}

namespace {

constexpr const char* kOp = "layer_norm";

void check(const LayerNorm& in) { check_layer_norm(kOp, in.x, in.weight, in.bias); }
void check(const LayerNormAdd& in) { check_layer_norm_of_sum("layer_norm_add", in.residual, in.x, in.weight, in.bias); }
void check(const LayerNormAddInPlace& in) {
  check_layer_norm_of_sum("layer_norm_add_", in.residual, in.x, in.weight, in.bias);
  require(in.residual.is_contiguous(), "layer_norm_add_", "residual must be contiguous");
}
void check(const LayerNormBackward& in) {
  check_layer_norm("layer_norm_backward", in.sum, in.weight, in.bias);
  if (in.grad_sum) require_type("layer_norm_backward", "grad_sum", *in.grad_sum, in.weight.scalar_type());
}

std::vector<int64_t> rows_of(const Tensor& x) { return x.sizes().slice(0, x.dim() - 1).vec(); }
Tensor empty_rows(const Tensor& x, const Tensor& weight) { return at::empty(rows_of(x), weight.options().dtype(sum_type(weight))); }

// By ATen, which is fast on every device for one norm alone; an fp32 stream becomes weight's type before.
Result<LayerNormForward> forward_reference(const LayerNorm& in) {
  check(in);
  auto [y, mean, inverse_std] = at::native_layer_norm(in.x.to(in.weight.scalar_type()), {in.x.size(-1)}, in.weight, in.bias, in.eps);
  const auto kept = [&](const Tensor& t) { return t.view(rows_of(in.x)).to(sum_type(in.weight)); };
  return {std::move(y), kept(mean), kept(inverse_std)};
}

Result<LayerNormForward> forward_meta(const LayerNorm& in) {
  check(in);
  return {at::empty(in.x.sizes(), in.weight.options()), empty_rows(in.x, in.weight), empty_rows(in.x, in.weight)};
}

Tensor empty_sum(const LayerNormAdd& in) {
  return at::empty(in.x.sizes(), in.residual ? in.residual->options() : in.x.options().dtype(sum_type(in.x)));
}

Result<LayerNormAddForward> add_forward_reference(const LayerNormAdd& in) {
  check(in);
  const Tensor sum = in.residual ? *in.residual + in.x : in.x.to(sum_type(in.x), /*non_blocking=*/false, /*copy=*/true);
  auto [y, mean, inverse_std] = forward_reference({sum, in.weight, in.bias, in.eps});
  return {sum, std::move(y), std::move(mean), std::move(inverse_std)};
}

Result<LayerNormAddForward> add_forward_meta(const LayerNormAdd& in) {
  check(in);
  return {empty_sum(in), at::empty(in.x.sizes(), in.weight.options()), empty_rows(in.x, in.weight), empty_rows(in.x, in.weight)};
}

Result<LayerNormBackward> backward_reference(const LayerNormBackward& in) {
  check(in);
  const at::ScalarType type = in.weight.scalar_type();
  std::vector<int64_t> kept = rows_of(in.sum);
  kept.push_back(1);
  // ATen's kernels for the CPU take means of the inputs' type.
  const at::ScalarType mean_type = in.sum.is_cpu() ? type : sum_type(in.weight);
  auto [grad_x, grad_weight, grad_bias] =
      at::native_layer_norm_backward(in.grad_y.contiguous(), in.sum.to(type), {in.sum.size(-1)}, in.mean.view(kept).to(mean_type),
                                     in.inverse_std.view(kept).to(mean_type), in.weight, in.bias, {true, true, true});
  if (in.grad_sum) grad_x.add_(*in.grad_sum);
  return {std::move(grad_x), std::move(grad_weight), std::move(grad_bias)};
}

Result<LayerNormBackward> backward_meta(const LayerNormBackward& in) {
  check(in);
  const at::TensorOptions options = in.weight.options();
  return {at::empty(in.sum.sizes(), options), at::empty(in.weight.sizes(), options), at::empty(in.weight.sizes(), options)};
}

Tensor add_in_place_reference(const LayerNormAddInPlace& in) {
  check(in);
  in.residual.add_(in.x);
  return std::get<0>(forward_reference({in.residual, in.weight, in.bias, in.eps}));
}

Tensor add_in_place_meta(const LayerNormAddInPlace& in) {
  check(in);
  return at::empty(in.residual.sizes(), in.weight.options());
}

bool norm_uses_kernel(const LayerNormKernels& table, const Tensor& x, const Tensor& weight) {
  return uses_kernel(kOp, x, has_kernel(weight) && has_kernel(x) && table.supports(weight.numel(), kernel_dtype(x), kernel_dtype(weight)));
}

// What a kernel reads: contiguous, and kept until it has been launched.
struct Laid {
  Tensor x, added, weight, bias;
};

kernels::LayerNorm arguments(const Laid& of, const Tensor& sum, double eps, const Tensor& y) {
  kernels::LayerNorm to;
  const Tensor& any = of.x.defined() ? of.x : sum;
  if (of.x.defined()) to.x = of.x.const_data_ptr();
  if (of.added.defined()) to.add = of.added.const_data_ptr();
  if (sum.defined()) to.sum = sum.mutable_data_ptr();
  to.weight = of.weight.const_data_ptr(), to.bias = of.bias.const_data_ptr();
  if (y.defined()) to.y = y.mutable_data_ptr();
  to.width = of.weight.size(0), to.rows = any.numel() / to.width;
  to.eps = static_cast<float>(eps);
  to.x_dtype = kernel_dtype(any), to.dtype = kernel_dtype(of.weight);
  return to;
}

// Of x + added, which is left in `sum`; each may be undefined, x where there is a sum.
Result<LayerNormForward> launch_forward(const LayerNormKernels& table, const LayerNorm& in, const Tensor& added, const Tensor& sum,
                                        bool keeps_mean) {
  const auto laid = [](const Tensor& t) { return t.defined() ? t.contiguous() : Tensor(); };
  const Laid of{laid(in.x), laid(added), in.weight.contiguous(), in.bias.contiguous()};
  const Tensor& any = of.x.defined() ? of.x : sum;
  const Tensor y = at::empty(any.sizes(), in.weight.options());
  kernels::LayerNorm to = arguments(of, sum, in.eps, y);
  Tensor mean, inverse_std;
  if (keeps_mean) {
    mean = empty_rows(any, in.weight), inverse_std = empty_rows(any, in.weight);
    to.mean = mean.mutable_data_ptr<float>(), to.inverse_std = inverse_std.mutable_data_ptr<float>();
  }
  require_ok(table.forward(to));
  return {y, mean, inverse_std};
}

}  // namespace

Result<LayerNormForward> layer_norm_forward_with(const LayerNormKernels& table, const LayerNorm& in) {
  if (!norm_uses_kernel(table, in.x, in.weight)) return forward_reference(in);
  check(in);
  return launch_forward(table, in, {}, {}, true);
}

Result<LayerNormAddForward> layer_norm_add_forward_with(const LayerNormKernels& table, const LayerNormAdd& in) {
  if (!norm_uses_kernel(table, in.residual ? *in.residual : in.x, in.weight)) return add_forward_reference(in);
  check(in);
  const Tensor sum = empty_sum(in);
  const auto [y, mean, inverse_std] = launch_forward(table, {value_or_undefined(in.residual), in.weight, in.bias, in.eps}, in.x, sum, true);
  return {sum, y, mean, inverse_std};
}

Tensor layer_norm_add_in_place_with(const LayerNormKernels& table, const LayerNormAddInPlace& in) {
  if (!norm_uses_kernel(table, in.residual, in.weight)) return add_in_place_reference(in);
  check(in);
  return std::get<0>(launch_forward(table, {in.residual, in.weight, in.bias, in.eps}, in.x, in.residual, false));
}

Result<LayerNormBackward> layer_norm_backward_with(const LayerNormKernels& table, const LayerNormBackward& in) {
  if (!norm_uses_kernel(table, in.sum, in.weight)) return backward_reference(in);
  const Tensor grad_x = std::get<0>(backward_meta(in));  // which checks
  const Laid of{in.sum.contiguous(), {}, in.weight.contiguous(), in.bias.contiguous()};
  const Tensor cotangent = in.grad_y.contiguous(), more = in.grad_sum ? in.grad_sum->contiguous() : Tensor();
  const Tensor mean = in.mean.contiguous(), inverse_std = in.inverse_std.contiguous();
  const Tensor weight_sum = at::empty(in.weight.sizes(), in.weight.options().dtype(at::kFloat)), bias_sum = at::empty_like(weight_sum);
  kernels::LayerNormBackward to;
  to.forward = arguments(of, {}, 0, {});
  to.forward.mean = mean.data_ptr<float>(), to.forward.inverse_std = inverse_std.data_ptr<float>();
  to.grad_y = cotangent.const_data_ptr();
  if (more.defined()) to.grad_sum = more.const_data_ptr();
  to.grad_x = grad_x.mutable_data_ptr();
  to.grad_weight = weight_sum.mutable_data_ptr<float>(), to.grad_bias = bias_sum.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table.backward_scratch(to), in.sum);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  return {grad_x, weight_sum.to(in.weight.scalar_type()), bias_sum.to(in.weight.scalar_type())};
}

namespace {

// Of a sum that is given out, and of x alone, whose sum is x. The gradients of residual and x are one tensor, of weight's type.
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
    auto [x, of_weight, of_bias] = call(LayerNormBackward{grad_sum, grad_y, sum, weight, saved[2], saved[3], saved[4]});
    if (!kAdds) x = x.to(sum.scalar_type());
    return {context->saved_data["has_residual"].toBool() ? x : Tensor(), x, of_weight, of_bias, Tensor()};
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

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<LayerNorm>(m)
      .reference<norm>()
      .named_reference<[](const LayerNorm& in) { return layer_norm_reference(in.x, in.weight, in.bias, in.eps); }>()
      .autograd<norm_autograd>();
  define<LayerNormForward>(m)
      .reference<[](const LayerNormForward& in) { return forward_reference(in.of); }>()
      .meta<[](const LayerNormForward& in) { return forward_meta(in.of); }>();
  define<LayerNormAdd>(m).reference<add>().autograd<add_autograd>();
  define<LayerNormAddForward>(m)
      .reference<[](const LayerNormAddForward& in) { return add_forward_reference(in.of); }>()
      .meta<[](const LayerNormAddForward& in) { return add_forward_meta(in.of); }>();
  define<LayerNormBackward>(m).reference<backward_reference>().meta<backward_meta>();
  define<LayerNormAddInPlace>(m).reference<add_in_place_reference>().meta<add_in_place_meta>().without_gradient();
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) { return call(LayerNorm{x, weight, bias, eps}); }

Tensor layer_norm_reference(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check({x, weight, bias, eps});
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

}  // namespace based::ops
