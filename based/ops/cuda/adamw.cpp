#include "based/ops/adamw.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

void run(const AdamwStep& step) {
  if (step.masters.empty()) return;
  const OnDevice device("adamw_", {{"masters", step.masters[0]}, {"rate", step.rate}, {"scale", step.scale}, {"usable", step.usable}});
  adamw_with(launch<kernels::cuda::adamw, kernels::Adamw>, step);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("adamw_", adamw_unpacked<run>); }

}  // namespace
}  // namespace based::ops
