// Common code of the CUDA kernels of the selective scan.
#pragma once
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/common/gpu.h"
#include "based/kernels/scan/scan.h"

namespace based::kernels::cuda::detail {

constexpr float kLog2e = 1.44269504F, kLn2 = 0.693147181F;

inline Status check_scan(const SelectiveScan& p) {
  if (p.tokens < 0 || p.rows < 0 || p.channels < 0) return {"selective_scan: sizes must not be negative"};
  if (p.state_size < 1 || p.state_size > kSelectiveScanStates) return {"selective_scan: state_size must be 1..256"};
  if (p.groups < 1 || p.channels % p.groups != 0) return {"selective_scan: channels must be a multiple of groups"};
  return {};
}

// Number of blocks of `width` channels per group.
__host__ __device__ inline int64_t scan_blocks(const SelectiveScan& p, int64_t width) {
  return (p.channels / p.groups + width - 1) / width;
}

// The work of a block: one row and up to `width` channels of one group. The blocks of a row are consecutive.
struct ScanPlace {
  int64_t row, number, group, channel;  // number: index of the block within its row; channel: the first channel
  int channels;

  __device__ __forceinline__ ScanPlace(const SelectiveScan& p, int64_t width) {
    const int64_t group_channels = p.channels / p.groups, blocks = scan_blocks(p, width);
    row = blockIdx.x / (blocks * p.groups), number = blockIdx.x % (blocks * p.groups), group = number / blocks;
    const int64_t first = number % blocks * width;
    channel = group * group_channels + first;
    channels = static_cast<int>(min(width, group_channels - first));
  }
};

// Loads an element without conversion into a 32-bit register. With 16-bit registers the compiler would insert copies, which wait for the
// loads.
__device__ __forceinline__ uint32_t load_raw(const float* p) { return __float_as_uint(*p); }
__device__ __forceinline__ uint32_t load_raw(const bf16* p) { return *reinterpret_cast<const uint16_t*>(p); }
template <typename T>
__device__ __forceinline__ float raw_value(uint32_t raw) {
  return __uint_as_float(sizeof(T) == 2 ? raw << 16 : raw);
}

// log(1 + e^x) = max(x, 0) + 2·atanh(s) with s = t / (2 + t) ≤ 1/3 and t = e^−|x|, by a series up to s^13. Relative error 3e-7.
__device__ __forceinline__ float softplus(float x) {
  const float t = exp2_approx(fabsf(x) * -kLog2e), s = t * reciprocal_approx(2.0F + t), square = s * s;
  float sum = 1.0F / 13;
#pragma unroll
  for (int power = 11; power > 0; power -= 2) sum = fmaf(sum, square, 1.0F / static_cast<float>(power));
  return fmaf(2.0F * s, sum, fmaxf(x, 0.0F));
}
__device__ __forceinline__ float scan_step(const SelectiveScan& p, float raw) {
  const float smooth = softplus(raw);
  return p.softplus ? smooth : raw;
}

// The forward kernel that computes C·h on tensor cores. It needs bf16, 16 state elements per channel, a multiple of 8 channels per group,
// and tokens aligned to 16 bytes.
bool scan_forward_mma_fits(const SelectiveScan&);
Status scan_forward_mma(const SelectiveScan&, Queue);

// A channel's rate for exp2: A·log2(e).
__device__ __forceinline__ float scan_rate(float A_log) { return -kLog2e * expf(A_log); }

}  // namespace based::kernels::cuda::detail
