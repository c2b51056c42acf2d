// As many rows as a step of decoding has go through kernels of our own, which read the weights at memory speed; more through cuBLAS.
#include "based/kernels/linear.h"

#include "based/ops/cuda/gated_hidden.h"
#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

Tensor forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const OnDevice device("linear", {{"x", x}, {"weight", weight}, {"bias", bias}});
  check_linear(x, weight, bias);
  if (!has_kernel(x) || x.size(0) > 128) return at::linear(x, weight, bias);
  const LinearLaunch launch = prepare_linear(x, weight, bias, weight.size(0));
  if (!kernels::cuda::linear_supports(launch.arguments)) return at::linear(x, weight, bias);
  require_ok(kernels::cuda::linear(launch.arguments, current_stream()));
  return launch.y;
}

Tensor forward_swiglu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const OnDevice device("linear_swiglu", {{"x", x}, {"weight", weight}, {"bias", bias}});
  check_linear(x, weight, bias);
  if (has_kernel(x) && x.size(0) == 1 && weight.size(0) % 2 == 0) {
    const LinearLaunch launch = prepare_linear(x, weight, bias, weight.size(0) / 2);
    if (kernels::cuda::linear_swiglu_supports(launch.arguments)) {
      require_ok(kernels::cuda::linear_swiglu(launch.arguments, current_stream()));
      return launch.y;
    }
  }
  if (!bias && gated_hidden_supports(x, weight)) return gated_hidden(x, weight);
  return swiglu(forward(x, weight, bias));
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("linear", forward);
  m.impl("linear_swiglu", forward_swiglu);
}

}  // namespace
}  // namespace based::ops
