// Linear layer of few rows with int8 weights. A block computes tiles of 16 outputs for up to 16 rows of x; its warps share `in`, in units
// of 64 weights, and add their sums in a fixed order. Integers up to 127 are exact in bf16, so the tensor cores multiply the weights
// without rounding and a row's scale multiplies its sum. An fp32 number of x is the sum of three numbers in bf16, which are multiplied one
// after another. mma sums over its k index, so any order of `in` is correct that weights and x share: a lane loads 16 adjacent weights of
// two rows, and uses four of each in one mma. A lane multiplies the same elements of x for all tiles of its block, so it copies these once
// to shared memory, where no other lane reads them. Loads of weights stay in flight from tile to tile.
#include "based/kernels/linear/quantised_linear.h"

#include <algorithm>
#include <climits>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/linear/cuda/int8.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kOutputs = 16;   // outputs of a tile; with `gated`, 8 outputs and their gates
constexpr int kLaneInts = 16;  // adjacent weights of a row that a lane loads at once
constexpr int kUnit = 4 * kLaneInts;
constexpr int kMostWarps = 16;
constexpr int kUnitsAhead = 4;  // units of its weights that a warp has requested
constexpr int kMostTiles = 2;   // tiles of 8 rows of x in a block
constexpr int kBlocks = 2;      // blocks of a multiprocessor

// How x and the weights are read. `shared` and `whole` need rows of whole groups of 16 elements, aligned to 16 bytes. `shared`: a copy of x
// in shared memory, if it fits.
enum class Reading { any, whole, shared };

// Elements first … first + 15 of a row of `count` elements as bytes; zeros beyond its end, or if not `valid`.
template <Reading kReading>
__device__ __forceinline__ uint4 load_ints(const int8_t* row, int first, int count, bool valid) {
  uint4 ints = make_uint4(0, 0, 0, 0);
  if constexpr (kReading != Reading::any) {
    asm volatile(
        "{\n.reg .pred valid;\nsetp.ne.b32 valid, %5, 0;\n"
        "@valid ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(ints.x), "+r"(ints.y), "+r"(ints.z), "+r"(ints.w)
        : "l"(row + first), "r"(static_cast<int>(valid && first < count)));
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kLaneInts; ++i)
      if (valid && first + i < count) words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(row[first + i])) << (8 * (i % 4));
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

template <typename T>
constexpr int kVectors = kLaneInts * sizeof(T) / 16;  // vectors of 16 bytes of a lane's elements of a unit

__device__ __forceinline__ void set_pair(Activations<float>& x, int i, float first, float second) {
#pragma unroll
  for (int part = 0; part < kParts<float>; ++part) {
    x.pairs[part][i] = pack_bf16(first, second);
    first -= low_float(x.pairs[part][i]), second -= high_float(x.pairs[part][i]);
  }
}
__device__ __forceinline__ void set_pair(Activations<bf16>& x, int i, float first, float second) {
  x.pairs[0][i] = pack_bf16(first, second);
}
// Vector j of kVectors.
__device__ __forceinline__ void set_vector(Activations<bf16>& x, int j, const uint4& v) {
  x.pairs[0][4 * j] = v.x, x.pairs[0][4 * j + 1] = v.y, x.pairs[0][4 * j + 2] = v.z, x.pairs[0][4 * j + 3] = v.w;
}
__device__ __forceinline__ void set_vector(Activations<float>& x, int j, const uint4& v) {
  set_pair(x, 2 * j, __uint_as_float(v.x), __uint_as_float(v.y)), set_pair(x, 2 * j + 1, __uint_as_float(v.z), __uint_as_float(v.w));
}

// Elements first … first + 15 of a row of x in global memory; zeros beyond its end.
template <typename T, Reading kReading>
__device__ __forceinline__ Activations<T> load_activations(const T* row, int first, int count) {
  Activations<T> x = {};
  if constexpr (kReading != Reading::any) {
    if (first >= count) return x;
#pragma unroll
    for (int j = 0; j < kVectors<T>; ++j) set_vector(x, j, reinterpret_cast<const uint4*>(row + first)[j]);
  } else {
    const auto at = [&](int i) { return i < count ? to_float(row[i]) : 0.0F; };
#pragma unroll
    for (int i = 0; i < kLaneInts / 2; ++i) set_pair(x, i, at(first + 2 * i), at(first + 2 * i + 1));
  }
  return x;
}

// The elements of x that a lane multiplies, in shared memory: [units of the warp][kTiles][kVectors][threads].
template <typename T, int kTiles>
struct LaneActivations {
  static constexpr int kUnitVectors = kTiles * kVectors<T>;
  const uint32_t at, stride;  // bytes: the lane's first vector; from one of its vectors to the next
  __device__ __forceinline__ explicit LaneActivations(const uint4* memory)
      : at(shared_address(memory + threadIdx.x)), stride(16 * blockDim.x) {}
  __device__ __forceinline__ uint32_t address(int unit_of_warp, int tile, int j) const {
    return at + static_cast<uint32_t>(unit_of_warp * kUnitVectors + tile * kVectors<T> + j) * stride;
  }
  // Elements first … first + 15 of a row; zeros if not `valid`.
  __device__ __forceinline__ void copy(int unit_of_warp, int tile, const T* row, int first, bool valid) const {
#pragma unroll
    for (int j = 0; j < kVectors<T>; ++j)
      copy_async_16(address(unit_of_warp, tile, j), valid ? row + first + j * (kLaneInts / kVectors<T>) : row, valid);
  }
  __device__ __forceinline__ Activations<T> get(int unit_of_warp, int tile) const {
    Activations<T> x;
#pragma unroll
    for (int j = 0; j < kVectors<T>; ++j) set_vector(x, j, load_shared_16(address(unit_of_warp, tile, j)));
    return x;
  }
};

// The rows of the weight that lane l of a warp loads: l / 4 and l / 4 + 8 of the tile's.
struct TileRows {
  int64_t out[2];
  __device__ __forceinline__ TileRows(const QuantisedLinear& p, int tile, int lane) {
    const int64_t group = lane / 4;
    if (p.gated) {
      out[0] = int64_t{tile} * (kOutputs / 2) + group, out[1] = out[0] + p.out / 2;
    } else {
      out[0] = int64_t{tile} * kOutputs + group, out[1] = out[0] + kOutputs / 2;
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

// The loads of a warp's part of the block's weights, in order: rounds of kUnitsAhead units of each tile. Each register is loaded again as
// soon as it has been used.
template <Reading kReading>
struct WeightStream {
  const QuantisedLinear& p;
  const int lane, warp, warps, in, tiles;
  const int8_t* rows[2];
  int tile, first;  // the next round's
  uint4 ints[kUnitsAhead][2];

  __device__ __forceinline__ WeightStream(const QuantisedLinear& linear, int all_tiles)
      : p(linear),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        warps(static_cast<int>(blockDim.x) / 32),
        in(static_cast<int>(linear.in)),
        tiles(all_tiles),
        tile(static_cast<int>(blockIdx.x)),
        first(warp) {
    set_rows();
  }
  __device__ __forceinline__ void set_rows() {
    const TileRows of(p, tile, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i)  // rows beyond the last one are the last one, and their sums are not stored
      rows[i] = static_cast<const int8_t*>(p.weight) + min(of.out[i], p.out - 1) * p.in + lane % 4 * kLaneInts;
  }
  __device__ __forceinline__ void load(int slot) {
    const int at = (first + slot * warps) * kUnit;
#pragma unroll
    for (int i = 0; i < 2; ++i) ints[slot][i] = load_ints<kReading>(rows[i], at, in - lane % 4 * kLaneInts, tile < tiles);
  }
  __device__ __forceinline__ void advance() {
    first += kUnitsAhead * warps;
    if ((first - warp) * kUnit < in) return;
    first = warp, tile += static_cast<int>(gridDim.x);
    set_rows();
  }
  __device__ __forceinline__ void load_first() {
#pragma unroll
    for (int slot = 0; slot < kUnitsAhead; ++slot) load(slot);
    advance();
  }
};

// The scales and biases of a lane's two outputs.
template <typename T>
struct OutputConstants {
  float scale[2] = {}, bias[2] = {};
  __device__ __forceinline__ void load(const QuantisedLinear& p, const TileRows& tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!tile.exists(p, i)) continue;
      scale[i] = static_cast<const float*>(p.scale)[tile.out[i]];
      if (p.bias != nullptr) bias[i] = to_float(static_cast<const T*>(p.bias)[tile.out[i]]);
    }
  }
};

// Adds the warps' sums of a tile of outputs and stores the outputs of 8 rows. Run by one warp.
template <typename T, int kTiles>
__device__ __forceinline__ void finish_rows(const QuantisedLinear& p, const TileRows& tile, const float4 (&sums)[kMostWarps][kTiles][32],
                                            int n, int64_t first_row, const OutputConstants<T>& constants) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  float4 all = sums[0][n][lane];
  for (int other = 1; other < warps; ++other) {
    const float4 v = sums[other][n][lane];
    all.x += v.x, all.y += v.y, all.z += v.z, all.w += v.w;
  }
  const int64_t row = first_row + n * 8 + lane % 4 * 2;
  store_outputs<T>(p, tile, row, all.x, all.z, constants.scale, constants.bias);
  store_outputs<T>(p, tile, row + 1, all.y, all.w, constants.scale, constants.bias);
}

// Multiplies a unit's weights, of which a lane has 16 of two rows, by x.
template <typename T, int kTiles, typename ActivationsOf>
__device__ __forceinline__ void multiply_unit(const uint4 (&ints)[2], const ActivationsOf& activations_of, float (&sum)[kTiles][2][4]) {
  const uint32_t low[4] = {ints[0].x, ints[0].y, ints[0].z, ints[0].w}, high[4] = {ints[1].x, ints[1].y, ints[1].z, ints[1].w};
  uint32_t a[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i][0] = low_int8_pair_as_bf16(low[i]), a[i][1] = low_int8_pair_as_bf16(high[i]);
    a[i][2] = high_int8_pair_as_bf16(low[i]), a[i][3] = high_int8_pair_as_bf16(high[i]);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const Activations<T> b = activations_of(n);
#pragma unroll
    for (int part = 0; part < kParts<T>; ++part)
#pragma unroll
      for (int i = 0; i < 4; ++i) mma_16x8x16(sum[n][i % 2], a[i], b.pairs[part][2 * i], b.pairs[part][2 * i + 1]);
  }
}

template <typename T, int kTiles, Reading kReading>
__global__ void __launch_bounds__(32 * kMostWarps, 1) int8_rows(const __grid_constant__ QuantisedLinear p, int tiles) {
  extern __shared__ uint4 memory[];                   // x, with Reading::shared
  __shared__ float4 sums[2][kMostWarps][kTiles][32];  // double buffer: one for this tile, one for the next
  WeightStream<kReading> weights(p, tiles);
  const LaneActivations<T, kTiles> lane_x(memory);
  const int lane = weights.lane, warp = weights.warp, warps = weights.warps, in = weights.in, units = (in + kUnit - 1) / kUnit;
  OutputConstants<T> constants;
  const auto load_constants = [&](int tile) {
    if (warp < kTiles) constants.load(p, TileRows(p, tile, lane));  // the first warps finish the outputs
  };
  let_next_kernel_start();
  if (p.weight_is_constant) weights.load_first(), load_constants(static_cast<int>(blockIdx.x));
  wait_for_earlier_kernels();
  if (!p.weight_is_constant) weights.load_first(), load_constants(static_cast<int>(blockIdx.x));

  const int64_t first_row = int64_t{blockIdx.y} * (8 * kTiles);
  const T* x[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) x[n] = static_cast<const T*>(p.x) + min(first_row + n * 8 + lane / 4, p.rows - 1) * p.x_stride;
  if constexpr (kReading == Reading::shared) {
    for (int unit = warp, i = 0; unit < units; unit += warps, ++i) {
      const int first = unit * kUnit + lane % 4 * kLaneInts;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) lane_x.copy(i, n, x[n], first, first < in && first_row + n * 8 + lane / 4 < p.rows);
    }
    copy_async_commit();
    copy_async_wait<0>();
  }
  int buffer = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x), buffer ^= 1) {
    if (tile != static_cast<int>(blockIdx.x)) load_constants(tile);
    float sum[kTiles][2][4] = {};
    for (int done = 0; done * warps < units; done += kUnitsAhead) {
#pragma unroll
      for (int slot = 0; slot < kUnitsAhead; ++slot) {
        const uint4 ints[2] = {weights.ints[slot][0], weights.ints[slot][1]};
        weights.load(slot);
        const int unit = warp + (done + slot) * warps;
        if (unit >= units) continue;  // the same for all lanes
        multiply_unit<T>(
            ints,
            [&](int n) {
              if constexpr (kReading == Reading::shared) return lane_x.get(done + slot, n);
              return load_activations<T, kReading>(x[n], unit * kUnit + lane % 4 * kLaneInts, in);
            },
            sum);
      }
      weights.advance();
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      sums[buffer][warp][n][lane] =
          make_float4(sum[n][0][0] + sum[n][1][0], sum[n][0][1] + sum[n][1][1], sum[n][0][2] + sum[n][1][2], sum[n][0][3] + sum[n][1][3]);
    __syncthreads();  // the sums of all warps are in shared memory
    if (warp < kTiles) finish_rows<T>(p, TileRows(p, tile, lane), sums[buffer], warp, first_row, constants);
  }
}

// Launches the kernel with this reading, or with Reading::whole if x does not fit into shared memory.
template <typename T, int kTiles, Reading kReading>
Status run_int8_rows(const QuantisedLinear& p, Queue queue) {
  // The number of warps, and so the order of additions, depends only on `in`. Warps have the same number of units, as far as possible.
  const int64_t units = ceil_div(p.in, kUnit), rounds = std::max<int64_t>(1, ceil_div(units, kMostWarps * kUnitsAhead));
  const int64_t warps = std::max<int64_t>(ceil_div(units, rounds * kUnitsAhead), kMostTiles);
  const int64_t outputs = p.gated ? p.out / 2 : p.out, tiles = ceil_div(outputs, p.gated ? kOutputs / 2 : kOutputs);
  const int64_t row_blocks = ceil_div(p.rows, 8 * kTiles), most = std::max<int64_t>(1, int64_t{kBlocks} * multiprocessors() / row_blocks);
  int64_t shared_bytes = 0;
  if constexpr (kReading == Reading::shared) {
    constexpr int64_t kSums = sizeof(float4) * 2 * kMostWarps * kTiles * 32;
    shared_bytes = ceil_div(units, warps) * LaneActivations<T, kTiles>::kUnitVectors * 32 * warps * 16;
    if (shared_bytes + kSums > block_shared_memory()) return run_int8_rows<T, kTiles, Reading::whole>(p, queue);
    if (const cudaError_t error = allow_shared_memory(int8_rows<T, kTiles, kReading>, static_cast<int>(shared_bytes)); error != cudaSuccess)
      return status_of(error);
  }
  const dim3 grid(static_cast<unsigned>(std::min(tiles, most)), static_cast<unsigned>(row_blocks));
  return launch_overlapped(int8_rows<T, kTiles, kReading>, {grid, static_cast<unsigned>(32 * warps), shared_bytes}, queue, p,
                           static_cast<int>(tiles));
}

template <typename T, int kTiles>
Status launch_rows(const QuantisedLinear& p, Queue queue) {
  const bool whole = p.in % kLaneInts == 0 && (p.rows == 1 || p.x_stride % kLaneInts == 0) && aligned16(p.x) && aligned16(p.weight);
  return whole ? run_int8_rows<T, kTiles, Reading::shared>(p, queue) : run_int8_rows<T, kTiles, Reading::any>(p, queue);
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
  if (p.rows < 0 || p.rows > INT16_MAX * int64_t{8} || p.in < 0 || p.in > INT32_MAX / 2 || p.out < 0 || p.out > INT32_MAX)
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
