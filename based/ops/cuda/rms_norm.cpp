#include "based/ops/rms_norm.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const RmsNormKernels kCuda{launch<kernels::cuda::rms_norm_forward, kernels::RmsNorm>, kernels::cuda::rms_norm_backward_scratch,
                           launch_with_scratch<kernels::cuda::rms_norm_backward, kernels::RmsNormBackward>,
                           /*width=*/8192};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<RmsNormForward, [](const RmsNormForward& in) { return rms_norm_forward_with(kCuda, in.of); }>(m);
  implement<RmsNormBackward, [](const RmsNormBackward& in) { return rms_norm_backward_with(kCuda, in); }>(m);
  implement<RmsNormGated, [](const RmsNormGated& in) { return rms_norm_gated_with(kCuda, in); }>(m);
  implement<RmsNormAddForward, [](const RmsNormAddForward& in) { return rms_norm_add_forward_with(kCuda, in.of); }>(m);
  implement<RmsNormAddBackward, [](const RmsNormAddBackward& in) { return rms_norm_add_backward_with(kCuda, in); }>(m);
  implement<RmsNormAddInPlace, [](const RmsNormAddInPlace& in) { return rms_norm_add_in_place_with(kCuda, in); }>(m);
  implement<RmsNormOfSum, [](const RmsNormOfSum& in) { return rms_norm_of_sum_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
