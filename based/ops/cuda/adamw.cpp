#include "based/ops/adamw.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

void run(const AdamwStep& step) {
  if (step.masters.empty()) return;
  const c10::Device device = step.masters[0].device();
  require_on("adamw_", "rate", step.rate, device);
  if (step.scale) require_on("adamw_", "scale", *step.scale, device);
  if (step.usable) require_on("adamw_", "usable", *step.usable, device);
  const c10::cuda::CUDAGuard guard(device);
  warn_of_missing_code();
  adamw_with(launch<kernels::cuda::adamw, kernels::Adamw>, step);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("adamw_", adamw_unpacked<run>); }

}  // namespace
}  // namespace based::ops
