#include "based/ops/scan/projected_scan.h"

#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear/split_columns.h"
#include "based/ops/scan/selective_scan.h"

namespace based::ops {
namespace {

using Context = torch::autograd::AutogradContext;
using Variables = torch::autograd::variable_list;

// Columns of u·x_weightᵀ.
struct Projected {
  Tensor low_rank, B, C;

  Projected(const Tensor& columns, int64_t rank, int64_t state_size) {
    const auto parts = columns.split_with_sizes({rank, state_size, state_size}, 1);
    low_rank = parts[0], B = parts[1].unsqueeze(1), C = parts[2].unsqueeze(1);
  }
};

// One gradient for the whole layer. With a gradient for each operator, those of x and z would be copied into one tensor, and the two
// gradients of u would be added in a pass of their own (docs/lab/models.md has the times).
struct ProjectedScanFunction : torch::autograd::Function<ProjectedScanFunction> {
  // The optional tensor is the last one: needs_input_grad() does not count an absent one.
  enum Input { kXz, kConvWeight, kXWeight, kDtWeight, kALog, kD, kDtBias, kCuSeqlens, kConvBias, kInputs };

  static Tensor forward(Context* context, const Tensor& xz, const Tensor& conv_weight, const Tensor& x_weight, const Tensor& dt_weight,
                        const Tensor& A_log, const Tensor& D, const Tensor& dt_bias, const Tensor& cu_seqlens,
                        const OptionalTensor& conv_bias) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const int64_t channels = conv_weight.size(0);
    const Tensor x = xz.narrow(1, 0, channels), z = xz.narrow(1, channels, channels);
    const Tensor u = std::get<0>(call(ShortConv{{x, conv_weight, conv_bias, {}, true}, cu_seqlens, {}}));
    const Tensor columns = at::linear(u, x_weight);
    const Projected projected(columns, dt_weight.size(1), A_log.size(1));
    const Tensor dt = at::linear(projected.low_rank, dt_weight);
    const auto [y, state, chunk_states] =
        call(SelectiveScanForward{{{u, dt, A_log, projected.B, projected.C, D, z, dt_bias}, cu_seqlens, {}}});
    context->save_for_backward(
        {xz, conv_weight, x_weight, dt_weight, A_log, D, dt_bias, cu_seqlens, value_or_undefined(conv_bias), u, columns, dt, chunk_states});
    return y;
  }

  static Variables backward(Context* context, const Variables& grads) {
    require(!at::GradMode::is_enabled(), "projected_scan", "gradients of gradients are not available");
    const Variables saved = context->get_saved_variables();
    const Tensor &xz = saved[kXz], &x_weight = saved[kXWeight], &dt_weight = saved[kDtWeight], &A_log = saved[kALog];
    const Tensor &u = saved[kInputs], &columns = saved[kInputs + 1], &dt = saved[kInputs + 2];
    const c10::DeviceGuard guard(xz.device());
    const int64_t channels = u.size(1);
    const Projected projected(columns, dt_weight.size(1), A_log.size(1));
    const auto halves = [&](const Tensor& t) { return std::pair(t.narrow(1, 0, channels), t.narrow(1, channels, channels)); };
    const auto [x, z] = halves(xz);
    const Tensor grad_xz = at::empty(xz.sizes(), xz.options());
    const auto [grad_x, grad_z] = halves(grad_xz);

    const SelectiveScan scan{{u, dt, A_log, projected.B, projected.C, saved[kD], z, saved[kDtBias]}, saved[kCuSeqlens], {}};
    const auto [grad_u, grad_dt, grad_A_log, grad_B, grad_C, grad_D, written_z, grad_dt_bias, grad_initial] =
        selective_scan_backward_to({grads[0], {}, scan, saved[kInputs + 3]}, grad_z);
    const Tensor grad_columns = at::cat({at::mm(grad_dt, dt_weight), grad_B.squeeze(1), grad_C.squeeze(1)}, 1);
    grad_u.addmm_(grad_columns, x_weight);
    const auto [written_x, grad_conv_weight, grad_conv_bias, no_gate, no_state] = short_conv_backward_to(
        {grad_u, {}, {{x, saved[kConvWeight], if_defined(saved[kConvBias]), {}, true}, saved[kCuSeqlens], {}}}, grad_x);

    Variables found(kInputs);
    found[kXz] = grad_xz, found[kConvWeight] = grad_conv_weight, found[kConvBias] = grad_conv_bias;
    if (context->needs_input_grad(kXWeight)) found[kXWeight] = at::mm(grad_columns.t(), u);
    if (context->needs_input_grad(kDtWeight)) found[kDtWeight] = at::mm(grad_dt.t(), projected.low_rank);
    found[kALog] = grad_A_log, found[kD] = grad_D, found[kDtBias] = grad_dt_bias;
    return found;
  }
};

}  // namespace

Tensor projected_scan(const ProjectedScanInputs& in, const Tensor& cu_seqlens) {
  require_shape("projected_scan", "xz", in.xz, {-1, 2 * in.conv_weight.size(0)});
  const bool wants =
      wants_gradient({in.xz, in.conv_weight, value_or_undefined(in.conv_bias), in.x_weight, in.dt_weight, in.A_log, in.D, in.dt_bias});
  // On a CPU, products in bf16 have a form of their own (linear.h).
  if (wants && has_kernel(in.xz) && (in.xz.is_cuda() || in.xz.scalar_type() == at::kFloat))
    return ProjectedScanFunction::apply(in.xz, in.conv_weight, in.x_weight, in.dt_weight, in.A_log, in.D, in.dt_bias, cu_seqlens,
                                        in.conv_bias);
  const int64_t channels = in.conv_weight.size(0), rank = in.dt_weight.size(1), state_size = in.A_log.size(1);
  const auto halves = split_columns(in.xz, {channels, channels});
  const Tensor u = std::get<0>(short_conv(halves[0], in.conv_weight, in.conv_bias, {}, true, cu_seqlens));
  const auto parts = split_columns(ops::linear(u, in.x_weight, {}), {rank, state_size, state_size});
  const SelectiveScanInputs scanned{
      u, ops::linear(parts[0], in.dt_weight, {}), in.A_log, parts[1].unsqueeze(1), parts[2].unsqueeze(1), in.D, halves[1], in.dt_bias};
  return std::get<0>(selective_scan(scanned, cu_seqlens));
}

}  // namespace based::ops
