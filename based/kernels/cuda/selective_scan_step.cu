// A step of the selective scan: a few lanes have a channel of a sequence, each some numbers of its state.
#include <bit>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;

// `lanes`, a power of two, have a channel, kCount numbers of its state at a time; `blocks` have a sequence.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) step_rows(const __grid_constant__ SelectiveScan p, int lanes, int64_t blocks) {
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int64_t row = blockIdx.x / blocks, unit = blockIdx.x % blocks * kThreads + threadIdx.x;
  const bool there = unit / lanes < p.channels;  // the others take part in the sums
  const int64_t channel = there ? unit / lanes : p.channels - 1, size = p.state_size;
  const int64_t first = unit % lanes * kCount, group = channel / (p.channels / p.groups) * size;
  float* state = p.state + ((p.slot != nullptr ? p.slot[row] : row) * p.channels + channel) * size;
  const T* A_log = static_cast<const T*>(p.A_log) + channel * size;
  float h[kCount] = {}, rate[kCount] = {};
  const auto load = [&](int64_t s) {
    if (s >= size) return;
    load_floats<kCount>(state + s, h), load_floats<kCount>(A_log + s, rate);
#pragma unroll
    for (int i = 0; i < kCount; ++i) rate[i] = scan_rate(rate[i]);
  };
  load(first);
  if (p.state_is_private) wait_for_earlier_kernels();
  const auto number = [&](const void* from, int64_t at) { return from != nullptr ? to_float(static_cast<const T*>(from)[at]) : 0.0F; };
  const float x = number(p.x, row * p.x_stride + channel), z = number(p.z, row * p.z_stride + channel);
  const float delta = scan_step(p, number(p.dt, row * p.dt_stride + channel) + number(p.dt_bias, channel));
  const T *B = static_cast<const T*>(p.B) + row * p.b_stride + group, *C = static_cast<const T*>(p.C) + row * p.c_stride + group;
  float y = 0;
  for (int64_t s = first; s < size; s += lanes * kCount) {
    if (s > first) load(s);
    float b[kCount], c[kCount];
    load_floats<kCount>(B + s, b), load_floats<kCount>(C + s, c);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      h[i] = fmaf(exp2_approx(delta * rate[i]), h[i], delta * x * b[i]);
      y = fmaf(c[i], h[i], y);
    }
    if (there) store_floats<kCount>(state + s, h);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) y += __shfl_xor_sync(~0U, y, distance);
  if (!there || first > 0) return;
  y = fmaf(number(p.D, channel), x, y);
  if (p.z != nullptr) y *= z * sigmoid(z);
  static_cast<T*>(p.y)[row * p.y_stride + channel] = from_float<T>(y);
}

// Whether the numbers of a state can be moved four at a time.
bool in_fours(const SelectiveScan& p) {
  const auto fits = [&](const void* from, int64_t stride) {
    return stride % 4 == 0 && reinterpret_cast<uintptr_t>(from) % static_cast<uintptr_t>(4 * dtype_size(p.dtype)) == 0;
  };
  return fits(p.A_log, p.state_size) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) && reinterpret_cast<uintptr_t>(p.state) % 16 == 0;
}

template <typename T>
Status step(const SelectiveScan& p, Stream stream) {
  const bool fours = in_fours(p);
  const auto lanes = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(ceil_div(p.state_size, fours ? 4 : 1))));
  const int used = lanes < 32 ? lanes : 32;
  const int64_t blocks = ceil_div(p.channels * used, kThreads);
  return launch_overlapped(fours ? step_rows<T, 4> : step_rows<T, 1>, {static_cast<unsigned>(p.rows * blocks), kThreads}, stream, p, used,
                           blocks);
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
