#include "based/ops/rotary.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<Rotary, [](const Rotary& in) { rotary_with(launch<kernels::cuda::rotary, kernels::Rotary>, in); }>(m);
}

}  // namespace based::ops
