#include "based/ops/gradient_norm.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

constexpr GradientNormKernel kKernel{kernels::cuda::gradient_norm_scratch,
                                     launch_with_scratch<kernels::cuda::gradient_norm, kernels::GradientNorm>};

GradientNorm run(const GradientNormOf& of) {
  require(of.loss.is_cuda(), "gradient_norm", "loss must be on a GPU as other arguments are, got ", of.loss.device());
  const c10::cuda::CUDAGuard guard(of.loss.device());
  warn_of_missing_code();
  return gradient_norm_with(kKernel, of);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("gradient_norm", gradient_norm_unpacked<run>); }

}  // namespace
}  // namespace based::ops
