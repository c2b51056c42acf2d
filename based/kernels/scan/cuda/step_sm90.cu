// A step of the selective scan for many rows. A warp handles 16 channels of 8 rows. Bulk copies load the states into shared memory, all
// those of a multiprocessor together, while the previous kernels still run. Optionally the kernel also computes the time steps, as a matrix
// product of a few small tiles.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/wgmma.cuh"
#include "based/kernels/scan/cuda/scan.cuh"
#include "based/kernels/scan/scan_step.h"

namespace based::kernels::cuda {
namespace detail {
namespace {

constexpr int kWarps = 4, kRows = kScanStepRows, kChannels = kScanStepChannels, kStates = kScanStepStates;
constexpr int kRowBytes = kChannels * kStates * 4, kTileBytes = kRows * kRowBytes;

// The layer that computes dt. Its inputs are processed in chunks of 32.
struct StepLayer {
  const bf16* x = nullptr;
  const bf16* weight = nullptr;
  int64_t x_stride = 0, weight_stride = 0;
  int in = 0;
};

#if BASED_HAS_WGMMA
constexpr int kHalves = 2;  // halves of a warp's channels; a lane has one channel of each

// Parameters of a lane's channels, which do not depend on the token.
template <int kChunks>
struct ScanConstants {
  float rate[kHalves][4], bias[kHalves], skip[kHalves];  // rate: holds A_log until compute_rates()
  uint4 weight[kChunks > 0 ? kChunks : 1][kHalves];

  __device__ __forceinline__ void load(const SelectiveScan& p, const StepLayer& layer, int channel, int quad) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int64_t c = channel + 8 * half;
      load_floats<4>(static_cast<const bf16*>(p.A_log) + c * kStates + quad * 4, rate[half]);
      bias[half] = p.dt_bias != nullptr ? to_float(static_cast<const bf16*>(p.dt_bias)[c]) : 0.0F;
      skip[half] = p.D != nullptr ? to_float(static_cast<const bf16*>(p.D)[c]) : 0.0F;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int k = chunk * 32 + quad * 8;
        weight[chunk][half] = k < layer.in ? *reinterpret_cast<const uint4*>(layer.weight + c * layer.weight_stride + k) : uint4{};
      }
    }
  }
  __device__ __forceinline__ void compute_rates() {
#pragma unroll
    for (int i = 0; i < 4 * kHalves; ++i) rate[i / 4][i % 4] = scan_rate(rate[i / 4][i % 4]);
  }
};

// Sums the parts of eight rows over a channel's four lanes. Lane q ends with the sums of rows 2q and 2q + 1.
__device__ __forceinline__ void sum_rows(const float (&parts)[kRows], int quad, float (&sums)[2]) {
  const bool high = (quad & 2) != 0, odd = (quad & 1) != 0;
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = (high ? parts[4 + i] : parts[i]) + __shfl_xor_sync(~0U, high ? parts[i] : parts[4 + i], 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) sums[i] = (odd ? four[2 + i] : four[i]) + __shfl_xor_sync(~0U, odd ? four[i] : four[2 + i], 1);
}

// The rows and channels of a warp. A lane handles channels `channel` and `channel` + 8, with four state elements each.
struct TilePosition {
  int first_row, rows, first, channel, lane, quad;
  __device__ __forceinline__ TilePosition(const SelectiveScan& p, int warp) : rows(static_cast<int>(p.rows)), lane(threadIdx.x % 32) {
    const int columns = static_cast<int>(p.channels) / kChannels, unit = static_cast<int>(blockIdx.x) * kWarps + warp;
    first_row = unit / columns * kRows, first = unit % columns * kChannels, channel = first + lane / 4, quad = lane % 4;
  }
  __device__ __forceinline__ int64_t row(int r) const { return min(first_row + r, rows - 1); }
};

// Initializes the barrier and starts loading the states. Lanes 0 to 7 load one row each, from slot `slot`.
__device__ __forceinline__ void load_states(const SelectiveScan& p, const TilePosition& position, int64_t slot, uint32_t tile,
                                            uint32_t barrier) {
  if (position.lane == 0) barrier_init(barrier), fence_shared_proxy(), barrier_expect(barrier, kTileBytes);
  __syncwarp();
  if (position.lane < kRows)
    bulk_load(tile + position.lane * kRowBytes, p.state + (slot * p.channels + position.first) * kStates, kRowBytes, barrier);
}

// Inputs of the tokens: B and C of all eight rows; dt, x and z of rows 2 · quad and 2 · quad + 1.
template <int kChunks>
struct ScanTokens {
  float dt[kHalves][2], x[kHalves][2], z[kHalves][2];
  uint4 layer_input[kChunks > 0 ? kChunks : 1];  // the layer's inputs of row lane / 4
  uint2 b[kRows], c[kRows];

  __device__ __forceinline__ void load(const SelectiveScan& p, const StepLayer& layer, const TilePosition& position) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int k = chunk * 32 + position.quad * 8;
      layer_input[chunk] =
          k < layer.in ? *reinterpret_cast<const uint4*>(layer.x + position.row(position.lane / 4) * layer.x_stride + k) : uint4{};
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = position.row(2 * position.quad + i);
        const int channel = position.channel + 8 * half;
        x[half][i] = to_float(static_cast<const bf16*>(p.x)[row * p.x_stride + channel]);
        z[half][i] = p.z != nullptr ? to_float(static_cast<const bf16*>(p.z)[row * p.z_stride + channel]) : 0.0F;
        if constexpr (kChunks == 0) dt[half][i] = to_float(static_cast<const bf16*>(p.dt)[row * p.dt_stride + channel]);
      }
    }
    const int group = p.groups == 1 ? 0 : position.first / static_cast<int>(p.channels / p.groups) * kStates,
              column = group + position.quad * 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      b[r] = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(p.B) + position.row(r) * p.b_stride + column);
      c[r] = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(p.C) + position.row(r) * p.c_stride + column);
    }
  }
  // Computes the layer's outputs. A lane's eight inputs are operands of two mma instructions. The order of k is permuted equally in both
  // operands.
  __device__ __forceinline__ void compute_dt(const ScanConstants<kChunks>& constants) {
    float d[4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 &u = constants.weight[chunk][0], &v = constants.weight[chunk][1], &w = layer_input[chunk];
      mma_16x8x16(d, {u.x, v.x, u.y, v.y}, w.x, w.y);
      mma_16x8x16(d, {u.z, v.z, u.w, v.w}, w.z, w.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) dt[i / 2][i % 2] = to_float(from_float<bf16>(d[i]));
  }
};

// Advances the states, which must have arrived, stores them, and computes the lane's part of C·h of each row.
template <int kChunks>
__device__ __forceinline__ void advance(const SelectiveScan& p, const TilePosition& position, int slot, uint32_t tile,
                                        const ScanConstants<kChunks>& constants, const ScanTokens<kChunks>& token,
                                        float (&parts)[kHalves][kRows]) {
  float delta[kHalves][2], delta_x[kHalves][2];
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    delta[i / 2][i % 2] = scan_step(p, token.dt[i / 2][i % 2] + constants.bias[i / 2]);
    delta_x[i / 2][i % 2] = delta[i / 2][i % 2] * token.x[i / 2][i % 2];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float b[4] = {low_float(token.b[r].x), high_float(token.b[r].x), low_float(token.b[r].y), high_float(token.b[r].y)};
    const float c[4] = {low_float(token.c[r].x), high_float(token.c[r].x), low_float(token.c[r].y), high_float(token.c[r].y)};
    const int64_t row_slot = __shfl_sync(~0U, slot, r);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float step = __shfl_sync(~0U, delta[half][r % 2], r / 2, 4), input = __shfl_sync(~0U, delta_x[half][r % 2], r / 2, 4);
      const float4 old = load_shared_float4(tile + r * kRowBytes + half * kRowBytes / 2 + position.lane * 16);
      float h[4] = {old.x, old.y, old.z, old.w}, sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        h[i] = fmaf(exp2_approx(step * constants.rate[half][i]), h[i], input * b[i]);
        sum = fmaf(c[i], h[i], sum);
      }
      parts[half][r] = sum;
      if (position.first_row + r < position.rows) {
        store_floats<4>(p.state + (row_slot * p.channels + position.channel + 8 * half) * kStates + position.quad * 4, h);
      }
    }
  }
}
#endif

template <int kChunks>
__global__ void __launch_bounds__(kWarps * 32, 4)
    step_tiles(const __grid_constant__ SelectiveScan p, const __grid_constant__ StepLayer layer) {
#if BASED_HAS_WGMMA
  extern __shared__ __align__(128) char memory[];
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const TilePosition position(p, warp);
  const uint32_t tile = shared_address(memory) + warp * kTileBytes, barrier = shared_address(memory) + kWarps * kTileBytes + warp * 8;
  let_next_kernel_start();
  if (position.first_row >= position.rows) return;
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int64_t lane_row = position.row(position.lane % kRows);
  const int slot = static_cast<int>(p.slot != nullptr ? p.slot[lane_row] : lane_row);
  load_states(p, position, slot, tile, barrier);
  ScanConstants<kChunks> constants;
  constants.load(p, layer, position.channel, position.quad);
  if (p.state_is_private) wait_for_earlier_kernels();
  ScanTokens<kChunks> token;
  token.load(p, layer, position);
  if constexpr (kChunks > 0) token.compute_dt(constants);
  constants.compute_rates();
  barrier_wait(barrier, 0);
  float parts[kHalves][kRows], y[kHalves][2];
  advance(p, position, slot, tile, constants, token, parts);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    sum_rows(parts[half], position.quad, y[half]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = position.first_row + 2 * position.quad + i;
      float out = fmaf(constants.skip[half], token.x[half][i], y[half][i]);
      if (p.z != nullptr) out *= token.z[half][i] * sigmoid(token.z[half][i]);
      if (row < position.rows) static_cast<bf16*>(p.y)[row * p.y_stride + position.channel + 8 * half] = from_float<bf16>(out);
    }
  }
#else
  __trap();
#endif
}

template <int kChunks>
Status run(const SelectiveScan& p, const StepLayer& layer, Queue queue) {
  constexpr int shared = kWarps * (kTileBytes + 8);
  auto* kernel = step_tiles<kChunks>;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  const int64_t units = ceil_div(p.rows, kRows) * (p.channels / kChannels);
  return launch_overlapped(kernel, {static_cast<unsigned>(ceil_div(units, kWarps)), kWarps * 32, shared}, queue, p, layer);
}

}  // namespace

Status selective_scan_step_sm90(const SelectiveScan& p, Queue queue) { return run<0>(p, {}, queue); }

}  // namespace detail

Status selective_scan_step_of_layer(const SelectiveScanOfLayer& p, Queue queue) {
  if (const Status status = detail::check_scan_step(p.scan); !status.ok()) return status;
  if (!scan_step_makes_dt(p, this_gpu())) return {"selective_scan_step_of_layer: not of these sizes and types"};
  const Linear& linear = p.layer;
  const detail::StepLayer layer{static_cast<const detail::bf16*>(linear.x), static_cast<const detail::bf16*>(linear.weight),
                                linear.x_stride, linear.weight_stride, static_cast<int>(linear.in)};
  return linear.in <= 64 ? detail::run<2>(p.scan, layer, queue) : detail::run<4>(p.scan, layer, queue);
}

namespace {
const DefineLaunchers<SelectiveScanOfLayerLaunchers> kLaunchers(Device::cuda, {.step = selective_scan_step_of_layer});
}

}  // namespace based::kernels::cuda
