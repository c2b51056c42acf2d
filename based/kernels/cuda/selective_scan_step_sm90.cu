// A step of the selective scan for many rows: a warp has 16 channels of 8 rows, whose states come to shared memory by bulk copies, all of
// a multiprocessor's at once, while the kernels before this one run. The time steps may be made here: a product of a few small tiles.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"
#include "based/kernels/cuda/wgmma.cuh"
#include "based/kernels/selective_scan_hopper.h"

namespace based::kernels::cuda {
namespace detail {
namespace {

constexpr int kWarps = 4, kRows = kScanStepRows, kChannels = kScanStepChannels, kStates = kScanStepStates;
constexpr int kRowBytes = kChannels * kStates * 4, kTileBytes = kRows * kRowBytes;

// The layer that makes dt; chunks of 32 inputs.
struct StepLayer {
  const bf16* x = nullptr;
  const bf16* weight = nullptr;
  int64_t x_stride = 0, weight_stride = 0;
  int in = 0;
};

#if BASED_HAS_WGMMA
constexpr int kHalves = 2;  // of a warp's channels: a lane has one of each

// What does not depend on the token.
template <int kChunks>
struct ScanConstants {
  float rate[kHalves][4], bias[kHalves], skip[kHalves];  // rate: A_log, until make_rates()
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
  __device__ __forceinline__ void make_rates() {
#pragma unroll
    for (int i = 0; i < 4 * kHalves; ++i) rate[i / 4][i % 4] = scan_rate(rate[i / 4][i % 4]);
  }
};

// Sums over a channel's four lanes of eight rows each; lane q ends with those of rows 2q and 2q + 1.
__device__ __forceinline__ void sum_rows(const float (&parts)[kRows], int quad, float (&sums)[2]) {
  const bool high = (quad & 2) != 0, odd = (quad & 1) != 0;
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = (high ? parts[4 + i] : parts[i]) + __shfl_xor_sync(~0U, high ? parts[i] : parts[4 + i], 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) sums[i] = (odd ? four[2 + i] : four[i]) + __shfl_xor_sync(~0U, odd ? four[i] : four[2 + i], 1);
}

// A warp's rows and channels; its lanes have those of `channel` and of 8 behind, and four numbers of each one's state.
struct TilePlace {
  int first_row, rows, first, channel, lane, quad;
  __device__ __forceinline__ TilePlace(const SelectiveScan& p, int warp) : rows(static_cast<int>(p.rows)), lane(threadIdx.x % 32) {
    const int columns = static_cast<int>(p.channels) / kChannels, unit = static_cast<int>(blockIdx.x) * kWarps + warp;
    first_row = unit / columns * kRows, first = unit % columns * kChannels, channel = first + lane / 4, quad = lane % 4;
  }
  __device__ __forceinline__ int64_t row(int r) const { return min(first_row + r, rows - 1); }
};

// Makes the barrier and sends for the states, lanes 0 to 7 a row each, of which `slot` is the lane's.
__device__ __forceinline__ void request_states(const SelectiveScan& p, const TilePlace& at, int64_t slot, uint32_t tile, uint32_t barrier) {
  if (at.lane == 0) barrier_init(barrier), fence_shared_proxy(), barrier_expect(barrier, kTileBytes);
  __syncwarp();
  if (at.lane < kRows) bulk_load(tile + at.lane * kRowBytes, p.state + (slot * p.channels + at.first) * kStates, kRowBytes, barrier);
}

// What the tokens bring: B and C of all rows, the rest of rows 2 · quad and the next.
template <int kChunks>
struct ScanTokens {
  float dt[kHalves][2], x[kHalves][2], z[kHalves][2];
  uint4 low[kChunks > 0 ? kChunks : 1];  // the layer's inputs of row lane / 4
  uint2 b[kRows], c[kRows];

  __device__ __forceinline__ void load(const SelectiveScan& p, const StepLayer& layer, const TilePlace& at) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int k = chunk * 32 + at.quad * 8;
      low[chunk] = k < layer.in ? *reinterpret_cast<const uint4*>(layer.x + at.row(at.lane / 4) * layer.x_stride + k) : uint4{};
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = at.row(2 * at.quad + i);
        const int channel = at.channel + 8 * half;
        x[half][i] = to_float(static_cast<const bf16*>(p.x)[row * p.x_stride + channel]);
        z[half][i] = p.z != nullptr ? to_float(static_cast<const bf16*>(p.z)[row * p.z_stride + channel]) : 0.0F;
        if constexpr (kChunks == 0) dt[half][i] = to_float(static_cast<const bf16*>(p.dt)[row * p.dt_stride + channel]);
      }
    }
    const int group = p.groups == 1 ? 0 : at.first / static_cast<int>(p.channels / p.groups) * kStates, column = group + at.quad * 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      b[r] = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(p.B) + at.row(r) * p.b_stride + column);
      c[r] = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(p.C) + at.row(r) * p.c_stride + column);
    }
  }
  // The layer's outputs. Each lane's eight inputs are those of two products, in the same order on both sides.
  __device__ __forceinline__ void make_dt(const ScanConstants<kChunks>& constants) {
    float d[4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 &u = constants.weight[chunk][0], &v = constants.weight[chunk][1], &w = low[chunk];
      mma_16x8x16(d, {u.x, v.x, u.y, v.y}, w.x, w.y);
      mma_16x8x16(d, {u.z, v.z, u.w, v.w}, w.z, w.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) dt[i / 2][i % 2] = to_float(from_float<bf16>(d[i]));
  }
};

// The states' step, once they are there, and the lane's part of C·h of each row.
template <int kChunks>
__device__ __forceinline__ void advance(const SelectiveScan& p, const TilePlace& at, int slot, uint32_t tile,
                                        const ScanConstants<kChunks>& constants, const ScanTokens<kChunks>& token,
                                        float (&parts)[kHalves][kRows]) {
  float delta[kHalves][2], in[kHalves][2];
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    delta[i / 2][i % 2] = scan_step(p, token.dt[i / 2][i % 2] + constants.bias[i / 2]);
    in[i / 2][i % 2] = delta[i / 2][i % 2] * token.x[i / 2][i % 2];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float b[4] = {low_float(token.b[r].x), high_float(token.b[r].x), low_float(token.b[r].y), high_float(token.b[r].y)};
    const float c[4] = {low_float(token.c[r].x), high_float(token.c[r].x), low_float(token.c[r].y), high_float(token.c[r].y)};
    const int64_t to = __shfl_sync(~0U, slot, r);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float step = __shfl_sync(~0U, delta[half][r % 2], r / 2, 4), input = __shfl_sync(~0U, in[half][r % 2], r / 2, 4);
      const float4 old = load_shared_float4(tile + r * kRowBytes + half * kRowBytes / 2 + at.lane * 16);
      float h[4] = {old.x, old.y, old.z, old.w}, sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        h[i] = fmaf(exp2_approx(step * constants.rate[half][i]), h[i], input * b[i]);
        sum = fmaf(c[i], h[i], sum);
      }
      parts[half][r] = sum;
      if (at.first_row + r < at.rows) {
        store_floats<4>(p.state + (to * p.channels + at.channel + 8 * half) * kStates + at.quad * 4, h);
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
  const TilePlace at(p, warp);
  const uint32_t tile = shared_address(memory) + warp * kTileBytes, barrier = shared_address(memory) + kWarps * kTileBytes + warp * 8;
  let_next_kernel_start();
  if (at.first_row >= at.rows) return;
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int64_t own = at.row(at.lane % kRows);
  const int slot = static_cast<int>(p.slot != nullptr ? p.slot[own] : own);
  request_states(p, at, slot, tile, barrier);
  ScanConstants<kChunks> constants;
  constants.load(p, layer, at.channel, at.quad);
  if (p.state_is_private) wait_for_earlier_kernels();
  ScanTokens<kChunks> token;
  token.load(p, layer, at);
  if constexpr (kChunks > 0) token.make_dt(constants);
  constants.make_rates();
  barrier_wait(barrier, 0);
  float parts[kHalves][kRows], y[kHalves][2];
  advance(p, at, slot, tile, constants, token, parts);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    sum_rows(parts[half], at.quad, y[half]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = at.first_row + 2 * at.quad + i;
      float out = fmaf(constants.skip[half], token.x[half][i], y[half][i]);
      if (p.z != nullptr) out *= token.z[half][i] * sigmoid(token.z[half][i]);
      if (row < at.rows) static_cast<bf16*>(p.y)[row * p.y_stride + at.channel + 8 * half] = from_float<bf16>(out);
    }
  }
#else
  __trap();
#endif
}

template <int kChunks>
Status run(const SelectiveScan& p, const StepLayer& layer, Stream stream) {
  constexpr int shared = kWarps * (kTileBytes + 8);
  auto* kernel = step_tiles<kChunks>;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  const int64_t units = ceil_div(p.rows, kRows) * (p.channels / kChannels);
  return launch_overlapped(kernel, {static_cast<unsigned>(ceil_div(units, kWarps)), kWarps * 32, shared}, stream, p, layer);
}

}  // namespace

Status selective_scan_step_sm90(const SelectiveScan& p, Stream stream) { return run<0>(p, {}, stream); }

}  // namespace detail

Status selective_scan_step_of_layer(const SelectiveScanOfLayer& p, Stream stream) {
  if (const Status status = detail::check_scan_step(p.scan); !status.ok()) return status;
  if (!scan_step_makes_dt(p, this_gpu())) return {"selective_scan_step_of_layer: not of these sizes and types"};
  const Linear& from = p.layer;
  const detail::StepLayer layer{static_cast<const detail::bf16*>(from.x), static_cast<const detail::bf16*>(from.weight), from.x_stride,
                                from.weight_stride, static_cast<int>(from.in)};
  return from.in <= 64 ? detail::run<2>(p.scan, layer, stream) : detail::run<4>(p.scan, layer, stream);
}

}  // namespace based::kernels::cuda
