#include "based/ops/selective_scan.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const SelectiveScanKernels kCuda{kernels::cuda::selective_scan_forward_scratch,
                                 launch_with_scratch<kernels::cuda::selective_scan_forward, kernels::SelectiveScan>,
                                 kernels::cuda::selective_scan_backward_scratch,
                                 launch_with_scratch<kernels::cuda::selective_scan_backward, kernels::SelectiveScanBackward>,
                                 launch<kernels::cuda::selective_scan_step, kernels::SelectiveScan>,
                                 kernels::kSelectiveScanCudaChunk};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<SelectiveScan, [](const SelectiveScan& in) { return selective_scan_with(kCuda, in); }>(m);
  implement<SelectiveScanForward, [](const SelectiveScanForward& in) { return selective_scan_forward_with(kCuda, in); }>(m);
  implement<SelectiveScanBackward, [](const SelectiveScanBackward& in) { return selective_scan_backward_with(kCuda, in); }>(m);
  implement<SelectiveScanPrefill, [](const SelectiveScanPrefill& in) { return selective_scan_prefill_with(kCuda, in); }>(m);
  implement<SelectiveScanStep, [](const SelectiveScanStep& in) { return selective_scan_step_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
