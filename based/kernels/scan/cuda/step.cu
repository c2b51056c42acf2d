// A step of the selective scan. A few lanes share a channel of one or more rows; each lane handles some of its state elements.
#include <algorithm>
#include <bit>
#include <limits>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/scan/cuda/scan.cuh"
#include "based/kernels/scan/scan_step.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128;
constexpr int kSharedRows = 4;  // rows that four lanes process together; each lane computes the step size and output of one row

// Offset of a row. All strides are below 2^31 here, so the product takes one instruction.
__device__ __forceinline__ int64_t offset(int row, int64_t stride) { return static_cast<int64_t>(row) * static_cast<int>(stride); }

// Scalar inputs of one row and channel, and its output y.
template <typename T>
struct StepScalars {
  float delta = 0, x = 0, z = 0;

  __device__ __forceinline__ void load(const SelectiveScan& p, int row, int channel) {
    const auto value = [&](const void* matrix, int64_t stride) {
      return matrix != nullptr ? to_float(static_cast<const T*>(matrix)[offset(row, stride) + channel]) : 0.0F;
    };
    x = value(p.x, p.x_stride), z = value(p.z, p.z_stride), delta = value(p.dt, p.dt_stride);
  }
  __device__ __forceinline__ void store(const SelectiveScan& p, int row, int channel, float skip, float readout) const {
    float y = fmaf(skip, x, readout);
    if (p.z != nullptr) y *= z * sigmoid(z);
    static_cast<T*>(p.y)[offset(row, p.y_stride) + channel] = from_float<T>(y);
  }
};

// Sums over groups of four adjacent lanes of a channel. With four rows, each lane ends with the sum of one row.
__device__ __forceinline__ float sum_lanes(const float (&parts)[kSharedRows], int lane, int /*lanes*/) {
  const bool high = (lane & 2) != 0, odd = (lane & 1) != 0;
  const float a = (high ? parts[2] : parts[0]) + __shfl_xor_sync(~0U, high ? parts[0] : parts[2], 2);
  const float b = (high ? parts[3] : parts[1]) + __shfl_xor_sync(~0U, high ? parts[1] : parts[3], 2);
  return (odd ? b : a) + __shfl_xor_sync(~0U, odd ? a : b, 1);
}
__device__ __forceinline__ float sum_lanes(const float (&parts)[1], int /*lane*/, int lanes) {
  float sum = parts[0];
  if (lanes > 2) sum += __shfl_xor_sync(~0U, sum, 2);
  if (lanes > 1) sum += __shfl_xor_sync(~0U, sum, 1);
  return sum;
}

// 2^lane_bits lanes share a channel; each processes kCount state elements at a time. `blocks` blocks cover the channels of kBatches · kRows
// rows. kRows is 1, or kShared if a channel has at least that many lanes.
template <typename T, int kCount, int kRows, int kBatches>
__global__ void __launch_bounds__(kThreads, kBatches > 1 ? 4 : 5)
    step_rows(const __grid_constant__ SelectiveScan p, int lane_bits, int blocks) {
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int lanes = 1 << lane_bits, channels = static_cast<int>(p.channels), size = static_cast<int>(p.state_size);
  const int rows = static_cast<int>(p.rows), group_index = static_cast<int>(blockIdx.x) / blocks, row = group_index * (kRows * kBatches);
  const int unit = (static_cast<int>(blockIdx.x) - group_index * blocks) * kThreads + static_cast<int>(threadIdx.x);
  const bool in_range = unit >> lane_bits < channels;  // other threads only take part in the shuffles
  const int channel = in_range ? unit >> lane_bits : channels - 1, lane = unit & (lanes - 1), own_row = lane % kRows, first = lane * kCount;
  const int group = p.groups == 1 ? 0 : channel / (channels / static_cast<int>(p.groups)) * size;
  const auto clamped_row = [&](int batch, int r) { return min(row + batch * kRows + r, rows - 1); };
  const int64_t slot_size = p.channels * p.state_size;
  float* states[kBatches][kRows];
#pragma unroll
  for (int i = 0; i < kBatches * kRows; ++i) {
    const int r = clamped_row(i / kRows, i % kRows);
    states[i / kRows][i % kRows] = p.state + ((p.slot != nullptr ? p.slot[r] : r) * slot_size + channel * size);
  }
  float h[kBatches][kRows][kCount] = {}, rate[kCount] = {};
  const auto load = [&](int s) {
    if (s >= size) return;
#pragma unroll
    for (int i = 0; i < kBatches * kRows; ++i) load_floats<kCount>(states[i / kRows][i % kRows] + s, h[i / kRows][i % kRows]);
    load_floats<kCount>(static_cast<const T*>(p.A_log) + (channel * size + s), rate);
  };
  load(first);
  if (p.state_is_private) wait_for_earlier_kernels();
  const float bias = p.dt_bias != nullptr ? to_float(static_cast<const T*>(p.dt_bias)[channel]) : 0.0F;
  const float skip = p.D != nullptr ? to_float(static_cast<const T*>(p.D)[channel]) : 0.0F;
  StepScalars<T> scalars[kBatches];
  float delta[kBatches][kRows], input[kBatches][kRows], y[kBatches][kRows] = {};
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) scalars[batch].load(p, clamped_row(batch, own_row), channel);
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) {
    const float step = scan_step(p, scalars[batch].delta + bias), product = step * scalars[batch].x;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      delta[batch][r] = kRows > 1 ? __shfl_sync(~0U, step, r, kRows) : step;
      input[batch][r] = kRows > 1 ? __shfl_sync(~0U, product, r, kRows) : product;
    }
  }
  for (int s = first; s < size; s += lanes * kCount) {
    if (s > first) load(s);
#pragma unroll
    for (int i = 0; i < kCount; ++i) rate[i] = scan_rate(rate[i]);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int token = clamped_row(batch, r);
        float b[kCount], c[kCount];
        load_floats<kCount>(static_cast<const T*>(p.B) + offset(token, p.b_stride) + (group + s), b);
        load_floats<kCount>(static_cast<const T*>(p.C) + offset(token, p.c_stride) + (group + s), c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          h[batch][r][i] = fmaf(exp2_approx(delta[batch][r] * rate[i]), h[batch][r][i], input[batch][r] * b[i]);
          y[batch][r] = fmaf(c[i], h[batch][r][i], y[batch][r]);
        }
        if (in_range && row + batch * kRows + r < rows) store_floats<kCount>(states[batch][r] + s, h[batch][r]);
      }
    }
  }
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) {
    float sum = sum_lanes(y[batch], lane, lanes);
    for (int distance = 4; distance < lanes; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (in_range && lane < kRows && row + batch * kRows + own_row < rows)
      scalars[batch].store(p, clamped_row(batch, own_row), channel, skip, sum);
  }
}

// Whether state elements can be loaded and stored four at a time.
bool allows_fours(const SelectiveScan& p) {
  const auto fits = [&](const void* data, int64_t stride) {
    return stride % 4 == 0 && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(4 * dtype_size(p.dtype)) == 0;
  };
  return fits(p.A_log, p.state_size) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) && reinterpret_cast<uintptr_t>(p.state) % 16 == 0;
}

template <typename T, int kRows, int kBatches>
Status step(const SelectiveScan& p, int lane_bits, Queue queue) {
  const int64_t blocks = ceil_div(p.channels << lane_bits, kThreads);
  const Launch launch{static_cast<unsigned>(ceil_div(p.rows, kRows * kBatches) * blocks), kThreads};
  auto* kernel = allows_fours(p) ? step_rows<T, 4, kRows, kBatches> : step_rows<T, 1, kRows, kBatches>;
  return launch_overlapped(kernel, launch, queue, p, lane_bits, static_cast<int>(blocks));
}
// With many rows, a thread processes several, so that enough loads of states are in flight.
template <typename T>
Status step(const SelectiveScan& p, Queue queue) {
  const int lanes = static_cast<int>(std::min<int64_t>(ceil_div(p.state_size, allows_fours(p) ? 4 : 1), 32));
  const int lane_bits = std::bit_width(static_cast<unsigned>(lanes - 1));
  if (lanes <= kSharedRows / 2 || p.rows < 32) return step<T, 1, 1>(p, lane_bits, queue);
  return p.rows < 64 ? step<T, kSharedRows, 1>(p, lane_bits, queue) : step<T, kSharedRows, 2>(p, lane_bits, queue);
}

}  // namespace

Status detail::check_scan_step(const SelectiveScan& p) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.tokens != p.rows) return {"selective_scan_step: a step has one token a row"};
  if (p.state == nullptr) return {"selective_scan_step: a step needs a state"};
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (p.rows > kMax / 32 || p.channels * std::max<int64_t>(p.state_size, 32) > kMax)
    return {"selective_scan_step: too many rows or channels"};
  if (std::max({p.x_stride, p.dt_stride, p.z_stride, p.y_stride, p.b_stride, p.c_stride}) > kMax)
    return {"selective_scan_step: a stride is too large"};
  return {};
}

Status selective_scan_step(const SelectiveScan& p, Queue queue) {
  if (const Status status = check_scan_step(p); !status.ok()) return status;
  if (p.rows == 0 || p.channels == 0) return {};
  if (scan_step_hopper_supports(p, this_gpu())) return selective_scan_step_sm90(p, queue);
  return (p.dtype == DType::bf16 ? step<bf16> : step<float>)(p, queue);
}

namespace {
const DefineLaunchers<SelectiveScanLaunchers> kLaunchers(Device::cuda, {.forward_scratch = selective_scan_forward_scratch,
                                                                        .forward = selective_scan_forward,
                                                                        .backward_scratch = selective_scan_backward_scratch,
                                                                        .backward = selective_scan_backward,
                                                                        .step = selective_scan_step,
                                                                        .chunk = kSelectiveScanCudaChunk});
}

}  // namespace based::kernels::cuda
