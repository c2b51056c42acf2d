// The Hopper kernel for a step of the selective scan: the problems it supports, and the variant that also computes the time steps from a
// linear layer.
#pragma once
#include "based/kernels/common/gpu.h"
#include "based/kernels/linear/linear.h"
#include "based/kernels/scan/scan.h"

namespace based::kernels {

constexpr int kScanStepRows = 8, kScanStepChannels = 16, kScanStepStates = 16;  // rows, channels and state elements per warp
constexpr int kScanStepMostRank = 128;
constexpr int kScanStepLeastRows = 64;  // with fewer rows, some multiprocessors would have no tile

// Whether a step uses the kernel that loads tiles of states into shared memory by bulk copies. It needs bf16, 16 state elements per
// channel, a multiple of 16 channels per group, and enough rows.
inline bool scan_step_hopper_supports(const SelectiveScan& p, const Gpu& gpu) {
  const auto whole = [](const void* data, int64_t stride, int64_t elements) {
    return stride % elements == 0 && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(2 * elements) == 0;
  };
  return gpu.runs_hopper_code && p.dtype == DType::bf16 && p.rows >= kScanStepLeastRows && p.state_size == kScanStepStates &&
         p.channels / p.groups % kScanStepChannels == 0 && aligned16(p.state) && whole(p.A_log, kScanStepStates, 4) &&
         whole(p.B, p.b_stride, 4) && whole(p.C, p.c_stride, 4);
}

// A step fused with the linear layer of few inputs that computes its time steps: scan.dt = layer(layer.x), rounded as the layer rounds it.
// The fields scan.dt and layer.y are ignored.
struct SelectiveScanOfLayer {
  SelectiveScan scan;
  Linear layer;
};
// Whether the fused kernel supports the step. The weight and the state must be both constant or both not: the kernel prefetches both or
// neither.
inline bool scan_step_makes_dt(const SelectiveScanOfLayer& p, const Gpu& gpu) {
  const Linear& layer = p.layer;
  return scan_step_hopper_supports(p.scan, gpu) && layer.dtype == DType::bf16 && layer.y_dtype == DType::bf16 && layer.bias == nullptr &&
         !layer.accumulate && layer.weight_is_constant == p.scan.state_is_private && layer.rows == p.scan.rows &&
         layer.out == p.scan.channels && layer.in % 8 == 0 && layer.in <= kScanStepMostRank && layer.x_stride % 8 == 0 &&
         layer.weight_stride % 8 == 0 && aligned16(layer.x) && aligned16(layer.weight);
}

namespace cuda {
Status selective_scan_step_of_layer(const SelectiveScanOfLayer& p, Queue queue);  // requires scan_step_makes_dt()
}  // namespace cuda

namespace cuda::detail {
Status check_scan_step(const SelectiveScan&);
Status selective_scan_step_sm90(const SelectiveScan&, Queue);  // requires scan_step_hopper_supports()
}  // namespace cuda::detail

// A GPU's launcher, as above.
struct SelectiveScanOfLayerLaunchers {
  Status (*step)(const SelectiveScanOfLayer&, Queue);
};

}  // namespace based::kernels
