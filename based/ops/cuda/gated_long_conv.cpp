#include "based/ops/gated_long_conv.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const GatedLongConvKernels kCuda{kernels::cuda::gated_long_conv_takes, kernels::cuda::gated_long_conv_backward_takes,
                                 launch<kernels::cuda::gated_long_conv_forward, kernels::GatedLongConv>,
                                 kernels::cuda::gated_long_conv_backward_scratch,
                                 launch_with_scratch<kernels::cuda::gated_long_conv_backward, kernels::GatedLongConvBackward>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<GatedLongConv, [](const GatedLongConv& in) { return gated_long_conv_with(kCuda, in); }>(m);
  implement<GatedLongConvBackward, [](const GatedLongConvBackward& in) { return gated_long_conv_backward_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
