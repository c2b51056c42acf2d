// Linear layer of few rows. Each warp computes one output at a time, or one part of an output if there are few outputs. So each weight is
// read once, 16 bytes per lane, and the order of additions of an output depends only on the layer's size and the device. Reading the
// weights is the bottleneck: a warp keeps loads in flight across its outputs. If the weights are constant, it issues the first loads before
// the previous kernels have ended.
#include "based/kernels/linear/linear.h"

#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/linear/linear_step.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kMaxWarps = 8;        // warps per block
constexpr int kResidentWarps = 32;  // warps per multiprocessor
constexpr int kMaxParts = 4;        // parts of a weight row
constexpr int kLoads = 4;           // loads that a lane has in flight
constexpr int kStep = 32 * kLoads;

// The part of the weights that a warp reads: 16-byte units first .. last − 1 of the rows of outputs out, out + stride, … below end. Each
// lane reads every 32nd unit. With kHalves = 2 (SwiGLU), each output has two rows: its own, and its gate's in the second half of the
// weight.
template <typename T, int kHalves>
struct WarpShare {
  static constexpr int kUnit = 16 / sizeof(T);
  int first, last, out, end, stride;
  // For block `block` of the layer's `blocks` blocks.
  __device__ __forceinline__ WarpShare(const Linear& p, int parts, int block, int blocks) {
    const int units = static_cast<int>(p.in / kUnit), warp = threadIdx.x / 32, part = warp % parts;
    const int64_t outputs = p.out / kHalves;
    first = units * part / parts, last = units * (part + 1) / parts, stride = static_cast<int>(blockDim.x) / 32 / parts;
    out = static_cast<int>(outputs * block / blocks) + warp / parts, end = static_cast<int>(outputs * (block + 1) / blocks);
  }
};

// The loads of a warp's share of the weights, in order. Each of the kLoads registers is reloaded as soon as it has been used.
template <typename T, int kHalves>
struct WeightStream {
  uint4 units[kLoads];
  const WarpShare<T, kHalves>& share;
  const T* weight;
  int64_t output_step, gate_step;
  int unit, out;
  bool gate = false;

  __device__ __forceinline__ WeightStream(const Linear& p, const WarpShare<T, kHalves>& warp_share)
      : share(warp_share),
        output_step(share.stride * p.weight_stride),
        gate_step(p.out / 2 * p.weight_stride),
        unit(share.first),
        out(share.out) {
    weight = static_cast<const T*>(p.weight) + out * p.weight_stride + (unit + static_cast<int>(threadIdx.x) % 32) * share.kUnit;
  }
  __device__ __forceinline__ void load(int f) {
    if (out < share.end && unit + 32 * f + static_cast<int>(threadIdx.x) % 32 < share.last)
      units[f] = __ldcs(reinterpret_cast<const uint4*>(weight) + 32 * f);
  }
  __device__ __forceinline__ void advance() {
    unit += kStep, weight += kStep * share.kUnit;
    if (unit < share.last) return;
    weight -= (unit - share.first) * share.kUnit, unit = share.first;
    if (kHalves == 2) gate = !gate, weight += gate ? gate_step : -gate_step;
    if (!gate) weight += output_step, out += share.stride;
  }
  __device__ __forceinline__ void load_first() {
#pragma unroll
    for (int f = 0; f < kLoads; ++f) load(f);
    advance();
  }
};

template <typename T, int kUnit>
__device__ __forceinline__ void add_products(const float (&weight)[kUnit], const T* x, float& sum) {
  float v[kUnit];
  load_floats<kUnit>(x, v);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) sum = fmaf(weight[i], v[i], sum);
}

// Adds this lane's products of one output to the sum of each row.
template <typename T, int kRows, int kHalves>
__device__ __forceinline__ void multiply(const Linear& p, const WarpShare<T, kHalves>& share, WeightStream<T, kHalves>& weights, bool valid,
                                         float (&sum)[kRows]) {
  constexpr int kUnit = WarpShare<T, kHalves>::kUnit;
  const int lane = threadIdx.x % 32;
  const T* x = static_cast<const T*>(p.x);
  for (int first = share.first; first < share.last; first += kStep) {
#pragma unroll
    for (int f = 0; f < kLoads; ++f) {
      const int unit = first + 32 * f + lane;
      if (valid && unit < share.last) {
        Elements<T, kUnit> w;
        memcpy(&w, &weights.units[f], 16);
        float values[kUnit];
#pragma unroll
        for (int i = 0; i < kUnit; ++i) values[i] = to_float(w.x[i]);
#pragma unroll
        for (int row = 0; row < kRows; ++row) add_products(values, x + row * p.x_stride + unit * kUnit, sum[row]);
      }
      weights.load(f);
    }
    weights.advance();
  }
}

// Stores one output of one row: adds the bias and, with kHalves = 2, multiplies by the SiLU of the gate.
template <typename T, typename Y, int kHalves>
__device__ __forceinline__ void write_output(const Linear& p, int row, int out, const float (&sum)[kHalves]) {
  float value[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const float bias = p.bias != nullptr ? to_float(static_cast<const T*>(p.bias)[out + h * (p.out / 2)]) : 0.0F;
    value[h] = sum[h] + bias;
  }
  Y* y = static_cast<Y*>(p.y) + row * p.y_stride + out;
  if constexpr (kHalves == 2) value[0] *= value[1] * sigmoid(value[1]);
  *y = from_float<Y>(value[0] + (p.accumulate ? to_float(*y) : 0.0F));
}

template <typename T, typename Y, int kRows, int kHalves>
__device__ __forceinline__ void multiply_share(const Linear& p, int parts, int block, int blocks) {
  __shared__ float sums[2][kMaxWarps][kRows][kHalves];  // double buffer: one for this output, one for the next
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const WarpShare<T, kHalves> share(p, parts, block, blocks);
  WeightStream<T, kHalves> weights(p, share);
  let_next_kernel_start();
  if (p.weight_is_constant) weights.load_first();
  wait_for_earlier_kernels();
  if (!p.weight_is_constant) weights.load_first();
  const int rounds = (share.end - share.out + warp / parts + share.stride - 1) / share.stride;  // equal in all warps of the block
  for (int round = 0; round < rounds; ++round) {
    const int out = share.out + round * share.stride;
    float sum[kHalves][kRows] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      multiply<T>(p, share, weights, out < share.end, sum[h]);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum[h][row] += __shfl_xor_sync(~0U, sum[h][row], distance);
        if (parts > 1 && lane == 0) sums[round % 2][warp][row][h] = sum[h][row];
      }
    }
    if (parts > 1) __syncthreads();
    if (warp % parts != 0 || out >= share.end || lane != 0) continue;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float all[kHalves];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        all[h] = sum[h][row];
        for (int part = 1; part < parts; ++part) all[h] += sums[round % 2][warp + part][row][h];
      }
      write_output<T, Y>(p, row, out, all);
    }
  }
}

template <typename T, typename Y, int kRows, int kHalves>
__global__ void __launch_bounds__(32 * kMaxWarps, kRows == 1 ? kResidentWarps / kMaxWarps : 1)
    few_rows(const __grid_constant__ Linear p, int parts) {
  multiply_share<T, Y, kRows, kHalves>(p, parts, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

// Layers of one row in one launch; their blocks are numbered one layer after another.
struct Layers {
  int count = 0;
  struct Entry {
    Linear layer;
    int parts, blocks;
  } entries[kMostLayersAtOnce];
};
template <typename T, typename Y>
__global__ void __launch_bounds__(32 * kMaxWarps, kResidentWarps / kMaxWarps) layers_of_one_row(const __grid_constant__ Layers layers) {
  int block = static_cast<int>(blockIdx.x), i = 0;
  while (block >= layers.entries[i].blocks) block -= layers.entries[i++].blocks;
  multiply_share<T, Y, 1, 1>(layers.entries[i].layer, layers.entries[i].parts, block, layers.entries[i].blocks);
}

// Splits rows into parts as long as all warps are resident together. If the warps already fill a quarter of the device, each lane must keep
// at least 3 units.
int choose_parts(const Linear& p, int64_t outputs, int64_t max_warps) {
  const int64_t units = p.in * dtype_size(p.dtype) / 16;
  int parts = 1;
  while (parts < kMaxParts && outputs * parts * 2 <= max_warps && (units / (parts * 2) >= 96 || outputs * parts * 8 <= max_warps))
    parts *= 2;
  return parts;
}

struct FewRowsPlan {
  int parts, warps, blocks;  // parts of a weight row, warps per block
  FewRowsPlan(const Linear& p, int64_t outputs) {
    const int64_t max_warps = static_cast<int64_t>(multiprocessors()) * kResidentWarps;
    parts = choose_parts(p, outputs, max_warps), warps = outputs > 4 * max_warps ? kMaxWarps : kMaxWarps / 2;
    blocks = static_cast<int>(std::min(ceil_div(outputs * parts, warps), max_warps / warps));
  }
};

template <typename T, typename Y, int kRows, int kHalves = 1>
Status run_rows(const Linear& p, Queue queue) {
  const FewRowsPlan plan(p, p.out / kHalves);
  return launch_overlapped(few_rows<T, Y, kRows, kHalves>, {static_cast<unsigned>(plan.blocks), static_cast<unsigned>(32 * plan.warps)},
                           queue, p, plan.parts);
}

template <typename T, typename Y>
Status run_layers(std::span<const Linear> layers, Queue queue) {
  Layers fused;
  unsigned blocks = 0, warps = 0;
  for (const Linear& layer : layers) {
    const FewRowsPlan plan(layer, layer.out);
    fused.entries[fused.count++] = {layer, plan.parts, plan.blocks};
    blocks += static_cast<unsigned>(plan.blocks), warps = static_cast<unsigned>(plan.warps);
  }
  return launch_overlapped(layers_of_one_row<T, Y>, {blocks, 32 * warps}, queue, fused);
}

template <typename T, typename Y>
Status choose_rows(const Linear& p, Queue queue) {
  switch (p.rows) {
    case 1: return run_rows<T, Y, 1>(p, queue);
    case 2: return run_rows<T, Y, 2>(p, queue);
    case 3: return run_rows<T, Y, 3>(p, queue);
    default: return run_rows<T, Y, 4>(p, queue);
  }
}

}  // namespace

bool linear_supports(const Linear& p) { return kernels::linear_supports(p, this_gpu()); }

Status linear(const Linear& p, Queue queue) {
  if (p.rows == 0 || p.out == 0) return {};
  if (!linear_supports(p)) return {"linear: too many rows, or rows that are no multiples of 16 bytes"};
  if (p.rows > 1 && linear_hopper_supports(p, this_gpu())) return linear_sm90(p, queue);
  const bool bf = p.dtype == DType::bf16, y_bf = p.y_dtype == DType::bf16;
  auto* choose =
      bf ? (y_bf ? choose_rows<bf16, bf16> : choose_rows<bf16, float>) : (y_bf ? choose_rows<float, bf16> : choose_rows<float, float>);
  return choose(p, queue);
}

Status linears_of_one_row(std::span<const Linear> layers, Queue queue) {
  for (const Linear& p : layers)
    if (!kernels::linear_at_once_supports(p, this_gpu()) || p.dtype != layers[0].dtype || p.y_dtype != layers[0].y_dtype)
      return {"linears_of_one_row: layers of other sizes or types"};
  if (layers.empty() || layers.size() > kMostLayersAtOnce) return {"linears_of_one_row: no layers, or too many"};
  const bool bf = layers[0].dtype == DType::bf16, y_bf = layers[0].y_dtype == DType::bf16;
  auto* run = bf ? (y_bf ? run_layers<bf16, bf16> : run_layers<bf16, float>) : (y_bf ? run_layers<float, bf16> : run_layers<float, float>);
  return run(layers, queue);
}

bool linear_swiglu_supports(const Linear& p) { return kernels::linear_swiglu_supports(p, this_gpu()); }

Status linear_swiglu(const Linear& p, Queue queue) {
  if (p.rows == 0 || p.out == 0) return {};
  if (!linear_swiglu_supports(p)) return {"linear_swiglu: too many rows, an odd number of outputs, or rows of no multiple of 16 bytes"};
  if (p.rows > 1) return linear_swiglu_sm90(p, queue);
  auto* run = p.dtype == DType::bf16 ? run_rows<bf16, bf16, 1, 2> : run_rows<float, float, 1, 2>;
  return run(p, queue);
}

namespace {
const DefineLaunchers<LinearLaunchers> kLaunchers(
    Device::cuda, {.supports = linear_supports, .forward = linear, .swiglu_supports = linear_swiglu_supports, .swiglu = linear_swiglu});
}

}  // namespace based::kernels::cuda
