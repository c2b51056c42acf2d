#include "based/ops/swiglu.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const SwigluKernels kCuda{launch<kernels::cuda::swiglu_forward, kernels::Swiglu>,
                          launch<kernels::cuda::swiglu_backward, kernels::SwigluBackward>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<Swiglu, [](const Swiglu& in) { return swiglu_with(kCuda, in); }>(m);
  implement<SwigluBackward, [](const SwigluBackward& in) { return swiglu_backward_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
