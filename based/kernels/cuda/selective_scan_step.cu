// A step of the selective scan: a few lanes have a channel of some sequences, each some numbers of its states.
#include <bit>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128;
constexpr int kRows = 4;  // sequences of a thread, so that enough of their states is under way

// `lanes`, a power of two, have a channel, kCount numbers of its state at a time; `blocks` have the channels of kPerThread sequences.
template <typename T, int kCount, int kPerThread>
__global__ void __launch_bounds__(kThreads, 5) step_rows(const __grid_constant__ SelectiveScan p, int lanes, int64_t blocks) {
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int64_t row = blockIdx.x / blocks * kPerThread, unit = blockIdx.x % blocks * kThreads + threadIdx.x;
  const bool in_range = unit / lanes < p.channels;  // the others take part in the sums
  const int64_t channel = in_range ? unit / lanes : p.channels - 1, size = p.state_size;
  const int64_t first = unit % lanes * kCount, group = channel / (p.channels / p.groups) * size;
  const auto there = [&](int r) { return row + r < p.rows; };
  float* states[kPerThread];
#pragma unroll
  for (int r = 0; r < kPerThread; ++r) {
    const int64_t at = there(r) ? row + r : row;
    states[r] = p.state + ((p.slot != nullptr ? p.slot[at] : at) * p.channels + channel) * size;
  }
  float h[kPerThread][kCount] = {}, rate[kCount] = {};
  const auto load = [&](int64_t s) {
    if (s >= size) return;
#pragma unroll
    for (int r = 0; r < kPerThread; ++r) load_floats<kCount>(states[r] + s, h[r]);
    load_floats<kCount>(static_cast<const T*>(p.A_log) + channel * size + s, rate);
  };
  load(first);
  if (p.state_is_private) wait_for_earlier_kernels();
  const auto number = [&](const void* from, int64_t at) { return from != nullptr ? to_float(static_cast<const T*>(from)[at]) : 0.0F; };
  const float bias = number(p.dt_bias, channel), skip = number(p.D, channel);
  float x[kPerThread], z[kPerThread], delta[kPerThread], y[kPerThread] = {};
#pragma unroll
  for (int r = 0; r < kPerThread; ++r) {
    const int64_t at = there(r) ? row + r : row;
    x[r] = number(p.x, at * p.x_stride + channel), z[r] = number(p.z, at * p.z_stride + channel);
    delta[r] = number(p.dt, at * p.dt_stride + channel);
  }
#pragma unroll
  for (int r = 0; r < kPerThread; ++r) delta[r] = scan_step(p, delta[r] + bias);
  for (int64_t s = first; s < size; s += lanes * kCount) {
    if (s > first) load(s);
#pragma unroll
    for (int i = 0; i < kCount; ++i) rate[i] = scan_rate(rate[i]);
#pragma unroll
    for (int r = 0; r < kPerThread; ++r) {
      const int64_t at = there(r) ? row + r : row;
      float b[kCount], c[kCount];
      load_floats<kCount>(static_cast<const T*>(p.B) + at * p.b_stride + group + s, b);
      load_floats<kCount>(static_cast<const T*>(p.C) + at * p.c_stride + group + s, c);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        h[r][i] = fmaf(exp2_approx(delta[r] * rate[i]), h[r][i], delta[r] * x[r] * b[i]);
        y[r] = fmaf(c[i], h[r][i], y[r]);
      }
      if (in_range && there(r)) store_floats<kCount>(states[r] + s, h[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kPerThread; ++r) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) y[r] += __shfl_xor_sync(~0U, y[r], distance);
    if (!in_range || first > 0 || !there(r)) continue;
    y[r] = fmaf(skip, x[r], y[r]);
    if (p.z != nullptr) y[r] *= z[r] * sigmoid(z[r]);
    static_cast<T*>(p.y)[(row + r) * p.y_stride + channel] = from_float<T>(y[r]);
  }
}

// Whether the numbers of a state can be moved four at a time.
bool in_fours(const SelectiveScan& p) {
  const auto fits = [&](const void* from, int64_t stride) {
    return stride % 4 == 0 && reinterpret_cast<uintptr_t>(from) % static_cast<uintptr_t>(4 * dtype_size(p.dtype)) == 0;
  };
  return fits(p.A_log, p.state_size) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) && reinterpret_cast<uintptr_t>(p.state) % 16 == 0;
}

template <typename T, int kPerThread>
Status step(const SelectiveScan& p, Stream stream) {
  const bool fours = in_fours(p);
  const auto wanted = std::bit_ceil(static_cast<uint64_t>(ceil_div(p.state_size, fours ? 4 : 1)));
  const int lanes = wanted < 32 ? static_cast<int>(wanted) : 32;
  const int64_t blocks = ceil_div(p.channels * lanes, kThreads);
  const Launch launch{static_cast<unsigned>(ceil_div(p.rows, kPerThread) * blocks), kThreads};
  return launch_overlapped(fours ? step_rows<T, 4, kPerThread> : step_rows<T, 1, kPerThread>, launch, stream, p, lanes, blocks);
}
template <typename T>
Status step(const SelectiveScan& p, Stream stream) {
  return p.rows < 2 * kRows ? step<T, 1>(p, stream) : step<T, kRows>(p, stream);
}

}  // namespace

Status selective_scan_step(const SelectiveScan& p, Stream stream) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.tokens != p.rows) return {"selective_scan_step: a step has one token a row"};
  if (p.state == nullptr) return {"selective_scan_step: a step needs a state"};
  if (p.rows == 0 || p.channels == 0) return {};
  return (p.dtype == DType::bf16 ? step<bf16> : step<float>)(p, stream);
}

}  // namespace based::kernels::cuda
