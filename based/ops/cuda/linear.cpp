// Few rows go through a kernel of our own, which reads the weights at memory speed; more rows through ATen's, cuBLAS.
#include "based/kernels/linear.h"

#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

Tensor forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const OnDevice device("linear", {{"x", x}, {"weight", weight}, {"bias", bias}});
  check_linear(x, weight, bias);
  if (!has_kernel(x) || x.size(0) > 4) return at::linear(x, weight, bias);
  const LinearLaunch launch = prepare_linear(x, weight, bias);
  if (!kernels::cuda::linear_supports(launch.arguments)) return at::linear(x, weight, bias);
  require_ok(kernels::cuda::linear(launch.arguments, current_stream()));
  return launch.y;
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("linear", forward); }

}  // namespace
}  // namespace based::ops
