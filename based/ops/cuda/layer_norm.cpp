#include "based/ops/layer_norm.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const LayerNormKernels kCuda{kernels::cuda::layer_norm_supports, launch<kernels::cuda::layer_norm_forward, kernels::LayerNorm>,
                             kernels::cuda::layer_norm_backward_scratch,
                             launch_with_scratch<kernels::cuda::layer_norm_backward, kernels::LayerNormBackward>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<LayerNormForward, [](const LayerNormForward& in) { return layer_norm_forward_with(kCuda, in.of); }>(m);
  implement<LayerNormAddForward, [](const LayerNormAddForward& in) { return layer_norm_add_forward_with(kCuda, in.of); }>(m);
  implement<LayerNormBackward, [](const LayerNormBackward& in) { return layer_norm_backward_with(kCuda, in); }>(m);
  implement<LayerNormAddInPlace, [](const LayerNormAddInPlace& in) { return layer_norm_add_in_place_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
