#include "based/ops/layer_norm.h"

#include "based/ops/cuda/on_device.h"
#include "based/ops/layer_norm_add_twice.h"

namespace based::ops {
namespace {

const LayerNormKernels kCuda{kernels::cuda::layer_norm_supports, launch<kernels::cuda::layer_norm_forward, kernels::LayerNorm>,
                             kernels::cuda::layer_norm_backward_scratch,
                             launch_with_scratch<kernels::cuda::layer_norm_backward, kernels::LayerNormBackward>};
const LayerNormTwiceKernels kTwice{kernels::cuda::layer_norm_supports,
                                   launch<kernels::cuda::layer_norm_twice_forward, kernels::LayerNormTwice>,
                                   kernels::cuda::layer_norm_twice_backward_scratch,
                                   launch_with_scratch<kernels::cuda::layer_norm_twice_backward, kernels::LayerNormTwiceBackward>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<LayerNormForward, [](const LayerNormForward& in) { return layer_norm_forward_with(kCuda, in.of); }>(m);
  implement<LayerNormAddForward, [](const LayerNormAddForward& in) { return layer_norm_add_forward_with(kCuda, in.of); }>(m);
  implement<LayerNormBackward, [](const LayerNormBackward& in) { return layer_norm_backward_with(kCuda, in); }>(m);
  implement<LayerNormAddInPlace, [](const LayerNormAddInPlace& in) { return layer_norm_add_in_place_with(kCuda, in); }>(m);
  implement<LayerNormAddTwiceForward, [](const LayerNormAddTwiceForward& in) { return layer_norm_add_twice_forward_with(kTwice, in.of); }>(
      m);
  implement<LayerNormAddTwiceBackward, [](const LayerNormAddTwiceBackward& in) { return layer_norm_add_twice_backward_with(kTwice, in); }>(
      m);
}

}  // namespace
}  // namespace based::ops
