#include "based/ops/layer_norm_add_twice.h"

#include <algorithm>
#include <array>

namespace based::ops {
namespace {

constexpr const char* kOp = "layer_norm_add_twice";

void check(const LayerNormAddTwice& in) {
  check_layer_norm_of_sum(kOp, in.residual, in.x, in.weight, in.bias);
  require_like(kOp, "next_weight", in.next_weight, in.weight);
  check_layer_norm(kOp, in.residual ? *in.residual : in.x, in.next_weight, in.next_bias);
}

Tensor no_sum(const Tensor& sum) { return at::empty({0}, sum.options()); }

// By layer_norm_add and its gradient, one norm after the other.
Result<LayerNormAddTwiceForward> forward_by_halves(const LayerNormAddTwiceForward& forward) {
  const LayerNormAddTwice& in = forward.of;
  check(in);
  const auto [first_sum, added, mean, inverse_std] = call(LayerNormAddForward{{in.residual, in.x, in.weight, in.bias, in.eps}});
  const auto [sum, y, next_mean, next_inverse_std] = call(LayerNormAddForward{{first_sum, added, in.next_weight, in.next_bias, in.eps}});
  return {first_sum, in.keeps_sum ? sum : no_sum(sum), y, at::stack({mean, next_mean}), at::stack({inverse_std, next_inverse_std})};
}

Result<LayerNormAddTwiceBackward> backward_by_halves(const LayerNormAddTwiceBackward& in) {
  const at::ScalarType type = in.weight.scalar_type();
  const Tensor unit = (in.first_sum - in.mean[0].unsqueeze(-1)) * in.inverse_std[0].unsqueeze(-1);
  const Tensor sum = in.first_sum + (unit * in.weight + in.bias).to(type);
  const auto [grad_sum, grad_next_weight, grad_next_bias] =
      call(LayerNormBackward{in.grad_sum, in.grad_y, sum, in.next_weight, in.next_bias, in.mean[1], in.inverse_std[1]});
  const auto [grad_x, grad_weight, grad_bias] =
      call(LayerNormBackward{grad_sum, grad_sum, in.first_sum, in.weight, in.bias, in.mean[0], in.inverse_std[0]});
  return {grad_x, grad_weight, grad_bias, grad_next_weight, grad_next_bias};
}

bool twice_uses_kernel(const LayerNormTwiceKernels& table, const Tensor& x, const Tensor& weight) {
  return uses_kernel(kOp, x, has_kernel(weight) && has_kernel(x) && table.supports(weight.numel(), kernel_dtype(x), kernel_dtype(weight)));
}

kernels::LayerNorm norm_of(const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& inverse_std) {
  kernels::LayerNorm to;
  to.weight = weight.const_data_ptr(), to.bias = bias.const_data_ptr();
  to.mean = mean.data_ptr<float>(), to.inverse_std = inverse_std.data_ptr<float>();
  return to;
}

void set_sizes(kernels::LayerNorm& to, const Tensor& sum, const Tensor& weight, double eps) {
  to.width = weight.size(0), to.rows = sum.numel() / to.width;
  to.eps = static_cast<float>(eps);
  to.x_dtype = kernel_dtype(sum), to.dtype = kernel_dtype(weight);
}

}  // namespace

Result<LayerNormAddTwiceForward> layer_norm_add_twice_forward_with(const LayerNormTwiceKernels& table, const LayerNormAddTwice& in) {
  if (!twice_uses_kernel(table, in.residual ? *in.residual : in.x, in.weight)) return forward_by_halves({in});
  check(in);
  const Tensor residual = in.residual ? in.residual->contiguous() : Tensor(), x = in.x.contiguous();
  const Tensor weight = in.weight.contiguous(), bias = in.bias.contiguous(), next_weight = in.next_weight.contiguous(),
               next_bias = in.next_bias.contiguous();
  const Tensor first_sum = at::empty(x.sizes(), residual.defined() ? residual.options() : x.options().dtype(sum_type(x)));
  const Tensor sum = in.keeps_sum ? at::empty_like(first_sum) : no_sum(first_sum), y = at::empty_like(x);
  std::vector<int64_t> kept = x.sizes().vec();
  kept.back() = 2, std::rotate(kept.begin(), kept.end() - 1, kept.end());
  const Tensor mean = at::empty(kept, weight.options().dtype(sum_type(weight))), inverse_std = at::empty_like(mean);
  kernels::LayerNormTwice to{norm_of(weight, bias, mean[0], inverse_std[0]), norm_of(next_weight, next_bias, mean[1], inverse_std[1])};
  if (residual.defined()) to.first.x = residual.const_data_ptr();
  to.first.add = x.const_data_ptr(), to.first.sum = first_sum.mutable_data_ptr();
  set_sizes(to.first, first_sum, weight, in.eps), set_sizes(to.second, first_sum, weight, in.eps);
  if (in.keeps_sum) to.second.sum = sum.mutable_data_ptr();
  to.second.y = y.mutable_data_ptr();
  require_ok(table.forward(to));
  return {first_sum, sum, y, mean, inverse_std};
}

Result<LayerNormAddTwiceBackward> layer_norm_add_twice_backward_with(const LayerNormTwiceKernels& table,
                                                                     const LayerNormAddTwiceBackward& in) {
  if (!twice_uses_kernel(table, in.first_sum, in.weight)) return backward_by_halves(in);
  const Tensor first_sum = in.first_sum.contiguous(), mean = in.mean.contiguous(), inverse_std = in.inverse_std.contiguous();
  const Tensor weight = in.weight.contiguous(), bias = in.bias.contiguous(), next_weight = in.next_weight.contiguous(),
               next_bias = in.next_bias.contiguous();
  const Tensor cotangent = in.grad_y.contiguous(), more = in.grad_sum ? in.grad_sum->contiguous() : Tensor();
  const Tensor grad_x = at::empty(first_sum.sizes(), weight.options());
  kernels::LayerNormTwiceBackward to;
  to.first = norm_of(weight, bias, mean[0], inverse_std[0]), to.second = norm_of(next_weight, next_bias, mean[1], inverse_std[1]);
  to.first.x = first_sum.const_data_ptr();
  set_sizes(to.first, first_sum, weight, 0), set_sizes(to.second, first_sum, weight, 0);
  to.grad_y = cotangent.const_data_ptr(), to.grad_x = grad_x.mutable_data_ptr();
  if (more.defined()) to.grad_sum = more.const_data_ptr();
  std::array<Tensor, 4> columns;  // weight and bias of the first norm, then of the second
  for (Tensor& sum : columns) sum = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
  for (const size_t i : {0, 1}) {
    to.grad_weight[i] = columns[2 * i].mutable_data_ptr<float>(), to.grad_bias[i] = columns[2 * i + 1].mutable_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table.backward_scratch(to), first_sum);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  for (Tensor& sum : columns) sum = sum.to(weight.scalar_type());
  return {grad_x, columns[0], columns[1], columns[2], columns[3]};
}

namespace {

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
    const auto [x, of_weight, of_bias, of_next_weight, of_next_bias] =
        call(LayerNormAddTwiceBackward{if_defined(grads[0]), grad_y, sum, weight, saved[2], saved[3], saved[4], saved[5], saved[6]});
    return {context->saved_data["has_residual"].toBool() ? x : Tensor(), x, of_weight, of_bias, of_next_weight, of_next_bias, Tensor()};
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
  // No kernel of the CPU saves a pass: both sums are kept there, as that costs less than to compute the second one again.
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

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<LayerNormAddTwice>(m).reference<twice>().autograd<twice_autograd>();
  define<LayerNormAddTwiceForward>(m).reference<forward_by_halves>();
  define<LayerNormAddTwiceBackward>(m).reference<backward_by_halves>();
}

}  // namespace

Result<LayerNormAddTwice> layer_norm_add_twice(const LayerNormAddTwice& in) { return call(in); }

}  // namespace based::ops
