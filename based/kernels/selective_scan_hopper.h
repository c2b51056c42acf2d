// The step of the selective scan on Hopper: what its kernel takes, and its form in a step of decoding, where it makes its own time steps.
#pragma once
#include "based/kernels/gpu.h"
#include "based/kernels/linear.h"
#include "based/kernels/selective_scan.h"

namespace based::kernels {

constexpr int kScanStepRows = 8, kScanStepChannels = 16, kScanStepStates = 16;  // of a warp
constexpr int kScanStepMostRank = 128;
constexpr int kScanStepLeastRows = 64;  // fewer leave multiprocessors without a tile

// Whether a step is made by tiles of states that bulk copies bring to shared memory: bf16 with 16 numbers a channel, whole 16 channels of a
// group, and rows enough.
inline bool scan_step_hopper_supports(const SelectiveScan& p, const Gpu& gpu) {
  const auto whole = [](const void* from, int64_t stride, int64_t elements) {
    return stride % elements == 0 && reinterpret_cast<uintptr_t>(from) % static_cast<uintptr_t>(2 * elements) == 0;
  };
  return gpu.runs_hopper_code && p.dtype == DType::bf16 && p.rows >= kScanStepLeastRows && p.state_size == kScanStepStates &&
         p.channels / p.groups % kScanStepChannels == 0 && aligned16(p.state) && whole(p.A_log, kScanStepStates, 4) &&
         whole(p.B, p.b_stride, 4) && whole(p.C, p.c_stride, 4);
}

// A step whose time steps come from a layer of few inputs, which has no launch of its own: scan.dt = layer(layer.x), rounded as the layer
// rounds it. scan.dt and layer.y are ignored.
struct SelectiveScanOfLayer {
  SelectiveScan scan;
  Linear layer;
};
// What is read ahead is read ahead of both or of neither.
inline bool scan_step_makes_dt(const SelectiveScanOfLayer& p, const Gpu& gpu) {
  const Linear& layer = p.layer;
  return scan_step_hopper_supports(p.scan, gpu) && layer.dtype == DType::bf16 && layer.y_dtype == DType::bf16 && layer.bias == nullptr &&
         !layer.accumulate && layer.weight_is_constant == p.scan.state_is_private && layer.rows == p.scan.rows &&
         layer.out == p.scan.channels && layer.in % 8 == 0 && layer.in <= kScanStepMostRank && layer.x_stride % 8 == 0 &&
         layer.weight_stride % 8 == 0 && aligned16(layer.x) && aligned16(layer.weight);
}

namespace cuda {
Status selective_scan_step_of_layer(const SelectiveScanOfLayer& p, Stream stream);  // `scan_step_makes_dt`
}  // namespace cuda

namespace cuda::detail {
Status check_scan_step(const SelectiveScan&);
Status selective_scan_step_sm90(const SelectiveScan&, Stream);  // `scan_step_hopper_supports`
}  // namespace cuda::detail

}  // namespace based::kernels
