// RMSNorm, SwiGLU and rotary positions.
#include "based/kernels/pointwise.h"

#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

const PointwiseKernels kCuda{launch<kernels::cuda::rms_norm_forward, kernels::RmsNorm>,
                             kernels::cuda::rms_norm_backward_scratch,
                             launch_with_scratch<kernels::cuda::rms_norm_backward, kernels::RmsNormBackward>,
                             launch<kernels::cuda::swiglu_forward, kernels::Swiglu>,
                             launch<kernels::cuda::swiglu_backward, kernels::SwigluBackward>,
                             launch<kernels::cuda::rotary, kernels::Rotary>,
                             /*rms_norm_width=*/8192};

std::tuple<Tensor, Tensor> norm(const Tensor& x, const Tensor& weight, double eps) {
  const OnDevice device("rms_norm", {{"x", x}, {"weight", weight}});
  return rms_norm_forward_with(kCuda, x, weight, eps);
}

Tensor norm_add(Tensor residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  const OnDevice device("rms_norm_add_", {{"residual", residual}, {"x", x}, {"weight", weight}, {"deferred", deferred}});
  return rms_norm_add_with(kCuda, residual, x, weight, eps, deferred);
}

Tensor norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  const OnDevice device("rms_norm_of_sum", {{"residual", residual}, {"x", x}, {"weight", weight}});
  return rms_norm_of_sum_with(kCuda, residual, x, weight, eps);
}

std::tuple<Tensor, Tensor, Tensor> norm_sum(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  const OnDevice device("rms_norm_add", {{"residual", residual}, {"x", x}, {"weight", weight}});
  return rms_norm_add_forward_with(kCuda, residual, x, weight, eps);
}

std::tuple<Tensor, Tensor> norm_sum_backward(const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& sum, const Tensor& weight,
                                             const Tensor& inverse_rms) {
  const OnDevice device("rms_norm_add_backward",
                        {{"grad_sum", grad_sum}, {"grad_y", grad_y}, {"sum", sum}, {"weight", weight}, {"inverse_rms", inverse_rms}});
  return rms_norm_add_backward_with(kCuda, grad_sum, grad_y, sum, weight, inverse_rms);
}

std::tuple<Tensor, Tensor> norm_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& inverse_rms) {
  const OnDevice device("rms_norm_backward", {{"grad_y", grad_y}, {"x", x}, {"weight", weight}, {"inverse_rms", inverse_rms}});
  return rms_norm_backward_with(kCuda, grad_y, x, weight, inverse_rms);
}

Tensor swiglu_forward(const Tensor& h) {
  const OnDevice device("swiglu", {{"h", h}});
  return swiglu_with(kCuda, h);
}

Tensor swiglu_backward(const Tensor& grad_y, const Tensor& h) {
  const OnDevice device("swiglu_backward", {{"grad_y", grad_y}, {"h", h}});
  return swiglu_backward_with(kCuda, grad_y, h);
}

void turn(Tensor x, const Tensor& positions, int64_t heads, int64_t head_dim, int64_t dim, double base, bool interleaved, bool inverse) {
  const OnDevice device("rotary_", {{"x", x}, {"positions", positions}});
  rotary_with(kCuda, std::move(x), positions, {heads, head_dim, dim, base, interleaved, inverse});
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("rms_norm_forward", norm);
  m.impl("rms_norm_add_", norm_add);
  m.impl("rms_norm_of_sum", norm_of_sum);
  m.impl("rms_norm_backward", norm_backward);
  m.impl("rms_norm_add_forward", norm_sum);
  m.impl("rms_norm_add_backward", norm_sum_backward);
  m.impl("swiglu", swiglu_forward);
  m.impl("swiglu_backward", swiglu_backward);
  m.impl("rotary_", turn);
}

}  // namespace
}  // namespace based::ops
