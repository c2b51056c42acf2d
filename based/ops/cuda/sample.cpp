#include "based/ops/sample.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<Sample, [](const Sample& in) { sample_with(launch<kernels::cuda::sample, kernels::Sample>, in); }>(m);
}

}  // namespace based::ops
