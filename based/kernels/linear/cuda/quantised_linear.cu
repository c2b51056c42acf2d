// Linear layer of few rows with int8 weights. A block computes 16 outputs for up to 16 rows of x; its warps share `in`, in units of 64
// weights, and add their sums in a fixed order. Integers up to 127 are exact in bf16, so the tensor cores multiply the weights without
// rounding and a row's scale multiplies its sum. An fp32 number of x is the sum of three numbers in bf16, which are multiplied one after
// another. mma sums over its k index, so any order of `in` is correct that weights and x share: a lane loads 16 adjacent weights of two
// rows, and uses four of each in one mma.
#include "based/kernels/linear/quantised_linear.h"

#include <algorithm>
#include <climits>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/linear/cuda/int8.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kOutputs = 16;   // outputs of a block; with `gated`, 8 outputs and their gates
constexpr int kLaneInts = 16;  // adjacent weights of a row that a lane loads at once
constexpr int kUnit = 4 * kLaneInts;
constexpr int kMostWarps = 8;
template <bool kWhole>
constexpr int kUnitsAhead = kWhole ? 4 : 1;  // units of its weights that a warp has requested
constexpr int kMostTiles = 2;                // tiles of 8 rows of x in a block

// Elements first … first + 15 of a row of `count` elements as bytes; zeros beyond its end. With kWhole a row has whole groups of 16,
// aligned to 16 bytes.
template <bool kWhole>
__device__ __forceinline__ uint4 load_ints(const int8_t* row, int first, int count) {
  uint4 ints = make_uint4(0, 0, 0, 0);
  if constexpr (kWhole) {
    if (first < count)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(ints.x), "=r"(ints.y), "=r"(ints.z), "=r"(ints.w)
                   : "l"(row + first));
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kLaneInts; ++i)
      if (first + i < count) words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(row[first + i])) << (8 * (i % 4));
    ints = make_uint4(words[0], words[1], words[2], words[3]);
  }
  return ints;
}

// The parts of x in bf16 whose sum is x: pairs of adjacent elements.
template <typename T>
constexpr int kParts = sizeof(T) == 4 ? 3 : 1;
template <typename T>
struct Activations {
  uint32_t pairs[kParts<T>][kLaneInts / 2];
};

template <typename T, bool kWhole>
__device__ __forceinline__ Activations<T> load_activations(const T* row, int first, int count) {
  Activations<T> x = {};
  if (kWhole && first >= count) return x;
  if constexpr (kWhole && sizeof(T) == 2) {
    memcpy(&x.pairs[0][0], row + first, 16);
    memcpy(&x.pairs[0][4], row + first + 8, 16);
  } else {
#pragma unroll
    for (int i = 0; i < kLaneInts / 2; ++i) {
      float v[2] = {};
      if constexpr (kWhole) {
        load_floats<2>(row + first + 2 * i, v);
      } else {
        if (first + 2 * i < count) v[0] = to_float(row[first + 2 * i]);
        if (first + 2 * i + 1 < count) v[1] = to_float(row[first + 2 * i + 1]);
      }
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) {
        x.pairs[part][i] = pack_bf16(v[0], v[1]);
        v[0] -= low_float(x.pairs[part][i]), v[1] -= high_float(x.pairs[part][i]);
      }
    }
  }
  return x;
}

// The rows of the weight that lane l of a warp loads: l / 4 and l / 4 + 8 of the block's.
struct TileRows {
  int64_t out[2];
  __device__ __forceinline__ TileRows(const QuantisedLinear& p, int lane) {
    const int64_t group = lane / 4;
    if (p.gated) {
      out[0] = int64_t{blockIdx.x} * (kOutputs / 2) + group, out[1] = out[0] + p.out / 2;
    } else {
      out[0] = int64_t{blockIdx.x} * kOutputs + group, out[1] = out[0] + kOutputs / 2;
    }
  }
  // With `gated`, both or none exist.
  __device__ __forceinline__ bool exists(const QuantisedLinear& p, int i) const { return p.gated ? out[0] < p.out / 2 : out[i] < p.out; }
};

template <typename T>
__device__ __forceinline__ void store_outputs(const QuantisedLinear& p, const TileRows& tile, int64_t row, float first, float second,
                                              const float (&scale)[2], const float (&bias)[2]) {
  if (row >= p.rows) return;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  const float value[2] = {fmaf(first, scale[0], bias[0]), fmaf(second, scale[1], bias[1])};
  if (p.gated) {
    if (tile.exists(p, 0)) y[tile.out[0]] = from_float<T>(value[0] * value[1] * sigmoid(value[1]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (tile.exists(p, i)) y[tile.out[i]] = from_float<T>(value[i]);
}

template <typename T, int kTiles, bool kWhole>
__global__ void __launch_bounds__(32 * kMostWarps, 2) int8_rows(const __grid_constant__ QuantisedLinear p) {
  __shared__ float4 sums[kMostWarps][kTiles][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32,
            in = static_cast<int>(p.in), in_unit = lane % 4 * kLaneInts;
  const TileRows tile(p, lane);
  const auto* const weight = static_cast<const int8_t*>(p.weight);
  const int8_t* rows[2];  // rows beyond the last one are the last one, and their sums are not stored
#pragma unroll
  for (int i = 0; i < 2; ++i) rows[i] = weight + min(tile.out[i], p.out - 1) * p.in;
  constexpr int kAhead = kUnitsAhead<kWhole>;
  uint4 ahead[kAhead][2];
  float scale[2] = {}, bias[2] = {};
  const auto load_unit = [&](int slot, int unit) {
    ahead[slot][0] = load_ints<kWhole>(rows[0], unit * kUnit + in_unit, in);
    ahead[slot][1] = load_ints<kWhole>(rows[1], unit * kUnit + in_unit, in);
  };
  const auto load_constants = [&] {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) load_unit(slot, warp + slot * warps);
    if (warp >= kTiles) return;  // the first warps finish the outputs
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!tile.exists(p, i)) continue;
      scale[i] = static_cast<const float*>(p.scale)[tile.out[i]];
      if (p.bias != nullptr) bias[i] = to_float(static_cast<const T*>(p.bias)[tile.out[i]]);
    }
  };
  let_next_kernel_start();
  if (p.weight_is_constant) load_constants();
  wait_for_earlier_kernels();
  if (!p.weight_is_constant) load_constants();

  const int64_t first_row = int64_t{blockIdx.y} * (8 * kMostTiles);
  const T* x[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) x[n] = static_cast<const T*>(p.x) + min(first_row + n * 8 + lane / 4, p.rows - 1) * p.x_stride;
  float sum[kTiles][4] = {};
  const int units = (in + kUnit - 1) / kUnit;
  for (int first = warp; first < units; first += kAhead * warps) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      const int unit = first + slot * warps;
      if (unit >= units) break;  // the same for all lanes
      uint32_t a[4][4];
      const uint32_t low[4] = {ahead[slot][0].x, ahead[slot][0].y, ahead[slot][0].z, ahead[slot][0].w};
      const uint32_t high[4] = {ahead[slot][1].x, ahead[slot][1].y, ahead[slot][1].z, ahead[slot][1].w};
      load_unit(slot, unit + kAhead * warps);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i][0] = low_int8_pair_as_bf16(low[i]), a[i][1] = low_int8_pair_as_bf16(high[i]);
        a[i][2] = high_int8_pair_as_bf16(low[i]), a[i][3] = high_int8_pair_as_bf16(high[i]);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const Activations<T> b = load_activations<T, kWhole>(x[n], unit * kUnit + in_unit, in);
#pragma unroll
        for (int part = 0; part < kParts<T>; ++part)
#pragma unroll
          for (int i = 0; i < 4; ++i) mma_16x8x16(sum[n], a[i], b.pairs[part][2 * i], b.pairs[part][2 * i + 1]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) sums[warp][n][lane] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
  __syncthreads();  // the sums of all warps are in shared memory
  for (int n = warp; n < kTiles; n += warps) {
    float4 all = sums[0][n][lane];
    for (int other = 1; other < warps; ++other) {
      const float4 v = sums[other][n][lane];
      all.x += v.x, all.y += v.y, all.z += v.z, all.w += v.w;
    }
    const int64_t row = first_row + n * 8 + lane % 4 * 2;
    store_outputs<T>(p, tile, row, all.x, all.z, scale, bias);
    store_outputs<T>(p, tile, row + 1, all.y, all.w, scale, bias);
  }
}

template <typename T, int kTiles>
Status launch_rows(const QuantisedLinear& p, Queue queue) {
  const bool whole = p.in % kLaneInts == 0 && (p.rows == 1 || p.x_stride % kLaneInts == 0) && aligned16(p.x) && aligned16(p.weight);
  const int64_t outputs = p.gated ? p.out / 2 : p.out, each = p.gated ? kOutputs / 2 : kOutputs;
  const int64_t warps = std::clamp<int64_t>(ceil_div(p.in, kUnit), kTiles, kMostWarps);
  const dim3 grid(static_cast<unsigned>(ceil_div(outputs, each)), static_cast<unsigned>(ceil_div(p.rows, 8 * kMostTiles)));
  return launch_overlapped(whole ? int8_rows<T, kTiles, true> : int8_rows<T, kTiles, false>, {grid, static_cast<unsigned>(32 * warps)},
                           queue, p);
}

template <typename T, int kCount>
__global__ void int8_to_floating(const __grid_constant__ Int8Rows p) {
  overlap_kernels();
  const float scale = p.scale[blockIdx.x];
  const int8_t* from = static_cast<const int8_t*>(p.weight) + int64_t{blockIdx.x} * p.in;
  T* to = static_cast<T*>(p.y) + int64_t{blockIdx.x} * p.in;
  for (int64_t at = int64_t{threadIdx.x} * kCount; at < p.in; at += int64_t{blockDim.x} * kCount) {
    const auto ints = *reinterpret_cast<const Elements<int8_t, kCount>*>(from + at);
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(ints.x[i]) * scale;
    store_floats<kCount>(to + at, values);
  }
}

template <typename T>
Status launch_dequantise(const Int8Rows& p, Queue queue) {
  constexpr int kVector = 8;
  const bool whole = p.in % 16 == 0 && aligned16(p.weight) && aligned16(p.y);
  return launch_overlapped(whole ? int8_to_floating<T, kVector> : int8_to_floating<T, 1>, {static_cast<unsigned>(p.rows), 128}, queue, p);
}

}  // namespace

Status quantised_linear(const QuantisedLinear& p, Queue queue) {
  if (p.rows == 0 || p.out == 0) return {};
  if (p.form != WeightForm::int8) return {"quantised_linear: int4 weights have no kernel for GPUs"};
  if (p.rows < 0 || p.rows > INT16_MAX * int64_t{16} || p.in < 0 || p.in > INT32_MAX / 2 || p.out < 0 || p.out > INT32_MAX)
    return {"quantised_linear: sizes out of range"};
  if (p.gated && p.out % 2 != 0) return {"quantised_linear: gates need an even number of outputs"};
  const bool narrow = p.rows <= 8;
  if (p.dtype == DType::bf16) return narrow ? launch_rows<bf16, 1>(p, queue) : launch_rows<bf16, kMostTiles>(p, queue);
  return narrow ? launch_rows<float, 1>(p, queue) : launch_rows<float, kMostTiles>(p, queue);
}

Status dequantise(const Int8Rows& p, Queue queue) {
  if (p.rows == 0 || p.in == 0) return {};
  if (p.rows < 0 || p.in < 0 || p.rows > INT32_MAX) return {"dequantise: sizes out of range"};
  return p.dtype == DType::bf16 ? launch_dequantise<bf16>(p, queue) : launch_dequantise<float>(p, queue);
}

namespace {
const DefineLaunchers<QuantisedLinearLaunchers> kLaunchers(Device::cuda, {.forward = quantised_linear, .dequantise = dequantise});
}

}  // namespace based::kernels::cuda
