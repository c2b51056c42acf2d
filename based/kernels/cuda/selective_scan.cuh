// What the kernels of the selective scan share, and the tiles of its backward: sixteen channels of a row, where sixteen lanes have a
// channel, each a run of the tile's tokens. They walk along their runs from zero, compose what the runs do to a state by shuffles, and
// walk again from the states that this gives.
#pragma once
#include "based/kernels/cuda/vectors.cuh"
#include "based/kernels/gpu.h"
#include "based/kernels/selective_scan.h"

namespace based::kernels::cuda::detail {

constexpr int kScanLanes = 16, kScanChannels = 16, kScanThreads = kScanLanes * kScanChannels;
constexpr int kScanSlab = 16;  // states whose B and C are in shared memory at a time
constexpr float kLog2e = 1.44269504F, kLn2 = 0.693147181F;

inline Status check_scan(const SelectiveScan& p) {
  if (p.tokens < 0 || p.rows < 0 || p.channels < 0) return {"selective_scan: sizes must not be negative"};
  if (p.state_size < 1 || p.state_size > kSelectiveScanStates) return {"selective_scan: state_size must be 1..256"};
  if (p.groups < 1 || p.channels % p.groups != 0) return {"selective_scan: channels must be a multiple of groups"};
  return {};
}

// Blocks that share the channels of a group, `width` each.
__host__ __device__ inline int64_t scan_blocks(const SelectiveScan& p, int64_t width) {
  return (p.channels / p.groups + width - 1) / width;
}

// A block's row and up to `width` channels of one group. The blocks of a row follow each other.
struct ScanPlace {
  int64_t row, number, group, channel;  // number: among the blocks of the row; channel: the first
  int channels;

  __device__ __forceinline__ ScanPlace(const SelectiveScan& p, int64_t width) {
    const int64_t of_group = p.channels / p.groups, blocks = scan_blocks(p, width);
    row = blockIdx.x / (blocks * p.groups), number = blockIdx.x % (blocks * p.groups), group = number / blocks;
    const int64_t first = number % blocks * width;
    channel = group * of_group + first;
    channels = static_cast<int>(min(width, of_group - first));
  }
};

// Where token t of a tile is in its row of shared memory: four neighbours stay together, and lanes that read runs of eight tokens meet in
// no bank.
__host__ __device__ __forceinline__ int scan_word(int t) { return t ^ ((t >> 5 & 3) << 2); }
// Likewise in rows of channels, where lanes that write neighbouring tokens of channels c and c + 8 meet in none either.
__host__ __device__ __forceinline__ int scan_word(int channel, int t) { return scan_word(t) ^ ((channel >> 3 & 1) << 4); }

// Four tokens' numbers at a time of the run that begins at token `first`; `shift`: of a channel, scan_word(channel, 0).
template <int kRun>
__device__ __forceinline__ void load_run(const float* row, int first, int shift, float (&to)[kRun]) {
#pragma unroll
  for (int k = 0; k < kRun; k += 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + (scan_word(first + k) ^ shift));
    to[k] = v.x, to[k + 1] = v.y, to[k + 2] = v.z, to[k + 3] = v.w;
  }
}
template <int kRun>
__device__ __forceinline__ void store_run(float* row, int first, int shift, const float (&from)[kRun]) {
#pragma unroll
  for (int k = 0; k < kRun; k += 4) {
    *reinterpret_cast<float4*>(row + (scan_word(first + k) ^ shift)) = make_float4(from[k], from[k + 1], from[k + 2], from[k + 3]);
  }
}

// Up to sixteen columns of a tile's tokens on their way to rows of shared memory; zeros past the tokens and the columns.
template <typename T, int kTile>
struct ScanColumns {
  static constexpr int kCount = 16 / sizeof(T), kParts = kScanSlab / kCount;
  static constexpr int kRounds = (kTile * kParts + kScanThreads - 1) / kScanThreads;
  const T* from;
  int64_t stride;
  int tokens, columns;
  bool whole;  // in 16 bytes, under way since the constructor
  Elements<T, kCount> ahead[kRounds];

  __device__ __forceinline__ ScanColumns(const void* matrix, int64_t at, int64_t stride_, int tokens_, int columns_)
      : from(static_cast<const T*>(matrix) + at), stride(stride_), tokens(tokens_), columns(columns_) {
    whole = columns % kCount == 0 && stride % kCount == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int i = round * kScanThreads + threadIdx.x, t = i / kParts, column = i % kParts * kCount;
      ahead[round] = Elements<T, kCount>{};
      if (whole && t < tokens && column < columns) {
        ahead[round] = *reinterpret_cast<const Elements<T, kCount>*>(from + t * stride + column);
      }
    }
  }

  // Calls put(column, t, value) for all of the tile; threads share them.
  template <class Put>
  __device__ __forceinline__ void put(Put&& put) const {
    if (whole) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int i = round * kScanThreads + threadIdx.x, t = i / kParts, column = i % kParts * kCount;
        if (t >= kTile) break;
#pragma unroll
        for (int j = 0; j < kCount; ++j) put(column + j, t, to_float(ahead[round].x[j]));
      }
      return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < kTile * kScanSlab; i += kScanThreads) {
      const int t = i / kScanSlab, column = i % kScanSlab;
      put(column, t, t < tokens && column < columns ? to_float(from[t * stride + column]) : 0.0F);
    }
  }
  template <int kWidth>
  __device__ __forceinline__ void put_channels(float (&rows)[kScanChannels][kWidth]) const {
    put([&](int column, int t, float value) { rows[column][scan_word(column, t)] = value; });
  }
  template <int kWidth>
  __device__ __forceinline__ void put_states(float (&rows)[kScanSlab][kWidth]) const {
    put([&](int column, int t, float value) { rows[column][scan_word(t)] = value; });
  }
};

// Calls store(t, column) for kCount columns from `column` on of each token; threads share them.
template <int kCount, class Store>
__device__ __forceinline__ void each_of_tile(int tokens, int columns, Store&& store) {
  constexpr int kParts = kScanSlab / kCount;
  for (int i = threadIdx.x; i < tokens * kParts; i += kScanThreads) {
    const int t = i / kParts, column = i % kParts * kCount;
    if (column < columns) store(t, column);
  }
}

// log(1 + e^x): 2·atanh(s) with s = t / (2 + t) ≤ 1/3 for t = e^−|x|, a series to s^13, to 3e-7 of it.
__device__ __forceinline__ float softplus(float x) {
  const float t = exp2_approx(fabsf(x) * -kLog2e), s = t * reciprocal_approx(2.0F + t), square = s * s;
  float sum = 1.0F / 13;
#pragma unroll
  for (int power = 11; power > 0; power -= 2) sum = fmaf(sum, square, 1.0F / static_cast<float>(power));
  return fmaf(2.0F * s, sum, fmaxf(x, 0.0F));
}
// softplus'(x) = 1 − e^−δ where δ = softplus(x).
__device__ __forceinline__ float softplus_slope(float delta) {
  if (delta >= 0.25F) return 1.0F - exp2_approx(delta * -kLog2e);
  float sum = 1.0F;
#pragma unroll
  for (int n = 6; n > 1; --n) sum = fmaf(sum, delta * (-1.0F / static_cast<float>(n)), 1.0F);
  return delta * sum;
}
__device__ __forceinline__ float scan_step(const SelectiveScan& p, float raw) { return p.softplus ? softplus(raw) : raw; }

// A channel's rate for exp2: A·log2(e).
__device__ __forceinline__ float scan_rate(float A_log) { return -kLog2e * expf(A_log); }

// The maps h ↦ decay·h + sum of a channel's lanes, each composed with all before it (up) or behind it (down). By the shuffle's own
// predicate, since the compiler copies both numbers for one of its own.
__device__ __forceinline__ void compose_up(float& decay, float& sum) {
#pragma unroll
  for (int distance = 1; distance < kScanLanes; distance *= 2) {
    asm volatile(
        "{\n.reg .pred inside;\n.reg .f32 d, s;\nshfl.sync.up.b32 d|inside, %0, %2, 0x1000, -1;\nshfl.sync.up.b32 s, %1, %2, 0x1000, -1;\n"
        "@inside fma.rn.f32 %1, %0, s, %1;\n@inside mul.rn.f32 %0, %0, d;\n}\n"
        : "+f"(decay), "+f"(sum)
        : "r"(distance));
  }
}
__device__ __forceinline__ void compose_down(float& decay, float& sum) {
#pragma unroll
  for (int distance = 1; distance < kScanLanes; distance *= 2) {
    asm volatile(
        "{\n.reg .pred inside;\n.reg .f32 d, s;\nshfl.sync.down.b32 d|inside, %0, %2, 0x101f, -1;\n"
        "shfl.sync.down.b32 s, %1, %2, 0x101f, -1;\n"
        "@inside fma.rn.f32 %1, %0, s, %1;\n@inside mul.rn.f32 %0, %0, d;\n}\n"
        : "+f"(decay), "+f"(sum)
        : "r"(distance));
  }
}
// What they make of h for the lane behind (up) or before (down); the first lane's is h itself.
__device__ __forceinline__ float from_below(float decay, float sum, float h, int lane) {
  const float other_decay = __shfl_up_sync(~0U, decay, 1, kScanLanes), other = __shfl_up_sync(~0U, sum, 1, kScanLanes);
  return lane == 0 ? h : fmaf(other_decay, h, other);
}
__device__ __forceinline__ float from_above(float decay, float sum, float h, int lane) {
  const float other_decay = __shfl_down_sync(~0U, decay, 1, kScanLanes), other = __shfl_down_sync(~0U, sum, 1, kScanLanes);
  return lane == kScanLanes - 1 ? h : fmaf(other_decay, h, other);
}

__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = kScanLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
  return value;
}

}  // namespace based::kernels::cuda::detail
