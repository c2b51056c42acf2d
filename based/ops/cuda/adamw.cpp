#include "based/ops/adamw.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

void run(const AdamwStep& step) {
  if (step.masters.empty()) return;
  const c10::Device device = step.masters[0].device();
  for (const auto& [name, tensor] : {std::pair("rate", OptionalTensor(step.rate)), {"scale", step.scale}, {"usable", step.usable}})
    if (tensor) require(tensor->device() == device, "adamw_", name, " must be on ", device, ", got ", tensor->device());
  const c10::cuda::CUDAGuard guard(device);
  warn_of_missing_code();
  adamw_with(launch<kernels::cuda::adamw, kernels::Adamw>, step);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("adamw_", adamw_unpacked<run>); }

}  // namespace
}  // namespace based::ops
