// A step of the selective scan: a few lanes have a channel of some sequences, each some numbers of its states.
#include <algorithm>
#include <bit>
#include <limits>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"
#include "based/kernels/selective_scan_hopper.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128;
constexpr int kShared = 4;  // sequences of which each of four lanes makes one's step size and output

// Of a row whose stride is below 2^31, as all are here: one instruction.
__device__ __forceinline__ int64_t offset(int row, int64_t stride) { return static_cast<int64_t>(row) * static_cast<int>(stride); }

// What a sequence's channel is given, and its y.
template <typename T>
struct StepScalars {
  float delta = 0, x = 0, z = 0;

  __device__ __forceinline__ void load(const SelectiveScan& p, int row, int channel) {
    const auto number = [&](const void* from, int64_t stride) {
      return from != nullptr ? to_float(static_cast<const T*>(from)[offset(row, stride) + channel]) : 0.0F;
    };
    x = number(p.x, p.x_stride), z = number(p.z, p.z_stride), delta = number(p.dt, p.dt_stride);
  }
  __device__ __forceinline__ void put(const SelectiveScan& p, int row, int channel, float skip, float read) const {
    float y = fmaf(skip, x, read);
    if (p.z != nullptr) y *= z * sigmoid(z);
    static_cast<T*>(p.y)[offset(row, p.y_stride) + channel] = from_float<T>(y);
  }
};

// Sums over a channel's lanes: first over four neighbours, which end with a sequence's each where there are four.
__device__ __forceinline__ float sum_of(const float (&parts)[kShared], int lane, int /*lanes*/) {
  const bool high = (lane & 2) != 0, odd = (lane & 1) != 0;
  const float a = (high ? parts[2] : parts[0]) + __shfl_xor_sync(~0U, high ? parts[0] : parts[2], 2);
  const float b = (high ? parts[3] : parts[1]) + __shfl_xor_sync(~0U, high ? parts[1] : parts[3], 2);
  return (odd ? b : a) + __shfl_xor_sync(~0U, odd ? a : b, 1);
}
__device__ __forceinline__ float sum_of(const float (&parts)[1], int /*lane*/, int lanes) {
  float sum = parts[0];
  if (lanes > 2) sum += __shfl_xor_sync(~0U, sum, 2);
  if (lanes > 1) sum += __shfl_xor_sync(~0U, sum, 1);
  return sum;
}

// 2^lane_bits lanes have a channel, kCount numbers of its state at a time; `blocks` have the channels of kBatches times kRows sequences.
// kRows is one, or kShared where there are as many lanes.
template <typename T, int kCount, int kRows, int kBatches>
__global__ void __launch_bounds__(kThreads, kBatches > 1 ? 4 : 5)
    step_rows(const __grid_constant__ SelectiveScan p, int lane_bits, int blocks) {
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int lanes = 1 << lane_bits, channels = static_cast<int>(p.channels), size = static_cast<int>(p.state_size);
  const int rows = static_cast<int>(p.rows), group_index = static_cast<int>(blockIdx.x) / blocks, row = group_index * (kRows * kBatches);
  const int unit = (static_cast<int>(blockIdx.x) - group_index * blocks) * kThreads + static_cast<int>(threadIdx.x);
  const bool in_range = unit >> lane_bits < channels;  // the others take part in the sums
  const int channel = in_range ? unit >> lane_bits : channels - 1, lane = unit & (lanes - 1), own = lane % kRows, first = lane * kCount;
  const int group = p.groups == 1 ? 0 : channel / (channels / static_cast<int>(p.groups)) * size;
  const auto place = [&](int batch, int r) { return min(row + batch * kRows + r, rows - 1); };
  const int64_t slot_size = p.channels * p.state_size;
  float* states[kBatches][kRows];
#pragma unroll
  for (int i = 0; i < kBatches * kRows; ++i) {
    const int at = place(i / kRows, i % kRows);
    states[i / kRows][i % kRows] = p.state + ((p.slot != nullptr ? p.slot[at] : at) * slot_size + channel * size);
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
  float delta[kBatches][kRows], in[kBatches][kRows], y[kBatches][kRows] = {};
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) scalars[batch].load(p, place(batch, own), channel);
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) {
    const float step = scan_step(p, scalars[batch].delta + bias), product = step * scalars[batch].x;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      delta[batch][r] = kRows > 1 ? __shfl_sync(~0U, step, r, kRows) : step;
      in[batch][r] = kRows > 1 ? __shfl_sync(~0U, product, r, kRows) : product;
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
        const int at = place(batch, r);
        float b[kCount], c[kCount];
        load_floats<kCount>(static_cast<const T*>(p.B) + offset(at, p.b_stride) + (group + s), b);
        load_floats<kCount>(static_cast<const T*>(p.C) + offset(at, p.c_stride) + (group + s), c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          h[batch][r][i] = fmaf(exp2_approx(delta[batch][r] * rate[i]), h[batch][r][i], in[batch][r] * b[i]);
          y[batch][r] = fmaf(c[i], h[batch][r][i], y[batch][r]);
        }
        if (in_range && row + batch * kRows + r < rows) store_floats<kCount>(states[batch][r] + s, h[batch][r]);
      }
    }
  }
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) {
    float sum = sum_of(y[batch], lane, lanes);
    for (int distance = 4; distance < lanes; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (in_range && lane < kRows && row + batch * kRows + own < rows) scalars[batch].put(p, place(batch, own), channel, skip, sum);
  }
}

// Whether the numbers of a state can be moved four at a time.
bool in_fours(const SelectiveScan& p) {
  const auto fits = [&](const void* from, int64_t stride) {
    return stride % 4 == 0 && reinterpret_cast<uintptr_t>(from) % static_cast<uintptr_t>(4 * dtype_size(p.dtype)) == 0;
  };
  return fits(p.A_log, p.state_size) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) && reinterpret_cast<uintptr_t>(p.state) % 16 == 0;
}

template <typename T, int kRows, int kBatches>
Status step(const SelectiveScan& p, int lane_bits, Stream stream) {
  const int64_t blocks = ceil_div(p.channels << lane_bits, kThreads);
  const Launch launch{static_cast<unsigned>(ceil_div(p.rows, kRows * kBatches) * blocks), kThreads};
  auto* kernel = in_fours(p) ? step_rows<T, 4, kRows, kBatches> : step_rows<T, 1, kRows, kBatches>;
  return launch_overlapped(kernel, launch, stream, p, lane_bits, static_cast<int>(blocks));
}
// Many sequences: several a thread, so that enough of their states is under way.
template <typename T>
Status step(const SelectiveScan& p, Stream stream) {
  const int lanes = static_cast<int>(std::min<int64_t>(ceil_div(p.state_size, in_fours(p) ? 4 : 1), 32));
  const int lane_bits = std::bit_width(static_cast<unsigned>(lanes - 1));
  if (lanes <= kShared / 2 || p.rows < 32) return step<T, 1, 1>(p, lane_bits, stream);
  return p.rows < 64 ? step<T, kShared, 1>(p, lane_bits, stream) : step<T, kShared, 2>(p, lane_bits, stream);
}

}  // namespace

Status detail::check_scan_step(const SelectiveScan& p) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.tokens != p.rows) return {"selective_scan_step: a step has one token a row"};
  if (p.state == nullptr) return {"selective_scan_step: a step needs a state"};
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (p.rows > kMost / 32 || p.channels * std::max<int64_t>(p.state_size, 32) > kMost)
    return {"selective_scan_step: too many rows or channels"};
  if (std::max({p.x_stride, p.dt_stride, p.z_stride, p.y_stride, p.b_stride, p.c_stride}) > kMost)
    return {"selective_scan_step: rows lie too far apart"};
  return {};
}

Status selective_scan_step(const SelectiveScan& p, Stream stream) {
  if (const Status status = check_scan_step(p); !status.ok()) return status;
  if (p.rows == 0 || p.channels == 0) return {};
  if (scan_step_hopper_supports(p, this_gpu())) return selective_scan_step_sm90(p, stream);
  return (p.dtype == DType::bf16 ? step<bf16> : step<float>)(p, stream);
}

}  // namespace based::kernels::cuda
