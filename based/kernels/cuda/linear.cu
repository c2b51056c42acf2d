// Few rows: a warp an output, or where outputs are few a part of one, so that every weight is read once, 16 bytes a lane, and the additions
// of an output happen in an order that depends on the layer's size and the device alone. Bound by reading the weights: a warp's requests
// stay under way across its outputs, and where the weights are constant, the first are sent before the kernels before this one have ended.
#include "based/kernels/linear.h"

#include <algorithm>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"
#include "based/kernels/linear_hopper.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kMostWarps = 8;     // of a block
constexpr int kWarpsAtOnce = 32;  // of a multiprocessor
constexpr int kMostParts = 4;     // of a weight's row
constexpr int kFlight = 4;        // units of a weight's row that a lane has under way
constexpr int kStep = 32 * kFlight;

// What a warp reads: of every warps / parts-th output of the block's, units first, first + 1, … last - 1, a lane every 32nd. Of kHalves = 2
// (SwiGLU) an output is that of the first half of the weight's rows and the one behind it in the second, its gate.
template <typename T, int kHalves>
struct Share {
  static constexpr int kUnit = 16 / sizeof(T);
  int first, last, out, end, stride;
  // `block` of the `blocks` that the layer has.
  __device__ __forceinline__ Share(const Linear& p, int parts, int block, int blocks) {
    const int units = static_cast<int>(p.in / kUnit), warp = threadIdx.x / 32, part = warp % parts;
    const int64_t outputs = p.out / kHalves;
    first = units * part / parts, last = units * (part + 1) / parts, stride = static_cast<int>(blockDim.x) / 32 / parts;
    out = static_cast<int>(outputs * block / blocks) + warp / parts, end = static_cast<int>(outputs * (block + 1) / blocks);
  }
};

// The requests of a warp's share, in order; each of kFlight is renewed as soon as it has been used.
template <typename T, int kHalves>
struct Requests {
  uint4 units[kFlight];
  const Share<T, kHalves>& share;
  const T* weight;
  int64_t to_next_output, to_gate;
  int unit, out;
  bool gate = false;

  __device__ __forceinline__ Requests(const Linear& p, const Share<T, kHalves>& of)
      : share(of), to_next_output(of.stride * p.weight_stride), to_gate(p.out / 2 * p.weight_stride), unit(of.first), out(of.out) {
    weight = static_cast<const T*>(p.weight) + out * p.weight_stride + (unit + static_cast<int>(threadIdx.x) % 32) * share.kUnit;
  }
  __device__ __forceinline__ void renew(int f) {
    if (out < share.end && unit + 32 * f + static_cast<int>(threadIdx.x) % 32 < share.last)
      units[f] = __ldcs(reinterpret_cast<const uint4*>(weight) + 32 * f);
  }
  __device__ __forceinline__ void advance() {
    unit += kStep, weight += kStep * share.kUnit;
    if (unit < share.last) return;
    weight -= (unit - share.first) * share.kUnit, unit = share.first;
    if (kHalves == 2) gate = !gate, weight += gate ? to_gate : -to_gate;
    if (!gate) weight += to_next_output, out += share.stride;
  }
  __device__ __forceinline__ void send_first() {
#pragma unroll
    for (int f = 0; f < kFlight; ++f) renew(f);
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

// This lane's part of an output's sums, of each row.
template <typename T, int kRows, int kHalves>
__device__ __forceinline__ void multiply(const Linear& p, const Share<T, kHalves>& share, Requests<T, kHalves>& requests, bool any,
                                         float (&sum)[kRows]) {
  constexpr int kUnit = Share<T, kHalves>::kUnit;
  const int lane = threadIdx.x % 32;
  const T* x = static_cast<const T*>(p.x);
  for (int first = share.first; first < share.last; first += kStep) {
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const int unit = first + 32 * f + lane;
      if (any && unit < share.last) {
        Elements<T, kUnit> w;
        memcpy(&w, &requests.units[f], 16);
        float values[kUnit];
#pragma unroll
        for (int i = 0; i < kUnit; ++i) values[i] = to_float(w.x[i]);
#pragma unroll
        for (int row = 0; row < kRows; ++row) add_products(values, x + row * p.x_stride + unit * kUnit, sum[row]);
      }
      requests.renew(f);
    }
    requests.advance();
  }
}

// An output of one row: with its bias, and of kHalves = 2 times the SiLU of its gate.
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
  __shared__ float sums[2][kMostWarps][kRows][kHalves];  // of an output and of the next
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Share<T, kHalves> share(p, parts, block, blocks);
  Requests<T, kHalves> requests(p, share);
  let_next_kernel_start();
  if (p.weight_is_constant) requests.send_first();
  wait_for_earlier_kernels();
  if (!p.weight_is_constant) requests.send_first();
  const int rounds = (share.end - share.out + warp / parts + share.stride - 1) / share.stride;  // the same in all warps of the block
  for (int round = 0; round < rounds; ++round) {
    const int out = share.out + round * share.stride;
    float sum[kHalves][kRows] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      multiply<T>(p, share, requests, out < share.end, sum[h]);
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
__global__ void __launch_bounds__(32 * kMostWarps, kRows == 1 ? kWarpsAtOnce / kMostWarps : 1)
    few_rows(const __grid_constant__ Linear p, int parts) {
  multiply_share<T, Y, kRows, kHalves>(p, parts, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

// Layers of one row, whose blocks follow each other.
struct Layers {
  int count = 0;
  struct One {
    Linear layer;
    int parts, blocks;
  } one[kMostLayersAtOnce];
};
template <typename T, typename Y>
__global__ void __launch_bounds__(32 * kMostWarps, kWarpsAtOnce / kMostWarps) layers_of_one_row(const __grid_constant__ Layers layers) {
  int block = static_cast<int>(blockIdx.x), i = 0;
  while (block >= layers.one[i].blocks) block -= layers.one[i++].blocks;
  multiply_share<T, Y, 1, 1>(layers.one[i].layer, layers.one[i].parts, block, layers.one[i].blocks);
}

// As many parts as warps fit at once, of 3 units a lane or more where the warps already fill a quarter of the device.
int parts_of(const Linear& p, int64_t outputs, int64_t most_warps) {
  const int64_t units = p.in * dtype_size(p.dtype) / 16;
  int parts = 1;
  while (parts < kMostParts && outputs * parts * 2 <= most_warps && (units / (parts * 2) >= 96 || outputs * parts * 8 <= most_warps))
    parts *= 2;
  return parts;
}

struct FewRowsPlan {
  int parts, warps, blocks;  // warps: of a block
  FewRowsPlan(const Linear& p, int64_t outputs) {
    const int64_t most_warps = static_cast<int64_t>(multiprocessors()) * kWarpsAtOnce;
    parts = parts_of(p, outputs, most_warps), warps = outputs > 4 * most_warps ? kMostWarps : kMostWarps / 2;
    blocks = static_cast<int>(std::min(ceil_div(outputs * parts, warps), most_warps / warps));
  }
};

template <typename T, typename Y, int kRows, int kHalves = 1>
Status run_rows(const Linear& p, Stream stream) {
  const FewRowsPlan plan(p, p.out / kHalves);
  return launch_overlapped(few_rows<T, Y, kRows, kHalves>, {static_cast<unsigned>(plan.blocks), static_cast<unsigned>(32 * plan.warps)},
                           stream, p, plan.parts);
}

template <typename T, typename Y>
Status run_layers(std::span<const Linear> layers, Stream stream) {
  Layers to;
  unsigned blocks = 0, warps = 0;
  for (const Linear& layer : layers) {
    const FewRowsPlan plan(layer, layer.out);
    to.one[to.count++] = {layer, plan.parts, plan.blocks};
    blocks += static_cast<unsigned>(plan.blocks), warps = static_cast<unsigned>(plan.warps);
  }
  return launch_overlapped(layers_of_one_row<T, Y>, {blocks, 32 * warps}, stream, to);
}

template <typename T, typename Y>
Status choose_rows(const Linear& p, Stream stream) {
  switch (p.rows) {
    case 1: return run_rows<T, Y, 1>(p, stream);
    case 2: return run_rows<T, Y, 2>(p, stream);
    case 3: return run_rows<T, Y, 3>(p, stream);
    default: return run_rows<T, Y, 4>(p, stream);
  }
}

}  // namespace

bool linear_supports(const Linear& p) { return kernels::linear_supports(p, this_gpu()); }

Status linear(const Linear& p, Stream stream) {
  if (p.rows == 0 || p.out == 0) return {};
  if (!linear_supports(p)) return {"linear: too many rows, or rows that are no multiples of 16 bytes"};
  if (p.rows > 1 && linear_hopper_supports(p, this_gpu())) return linear_sm90(p, stream);
  const bool bf = p.dtype == DType::bf16, y_bf = p.y_dtype == DType::bf16;
  auto* choose =
      bf ? (y_bf ? choose_rows<bf16, bf16> : choose_rows<bf16, float>) : (y_bf ? choose_rows<float, bf16> : choose_rows<float, float>);
  return choose(p, stream);
}

Status linears_of_one_row(std::span<const Linear> layers, Stream stream) {
  for (const Linear& p : layers)
    if (!kernels::linear_at_once_supports(p, this_gpu()) || p.dtype != layers[0].dtype || p.y_dtype != layers[0].y_dtype)
      return {"linears_of_one_row: layers of other sizes or types"};
  if (layers.empty() || layers.size() > kMostLayersAtOnce) return {"linears_of_one_row: no layers, or too many"};
  const bool bf = layers[0].dtype == DType::bf16, y_bf = layers[0].y_dtype == DType::bf16;
  auto* run = bf ? (y_bf ? run_layers<bf16, bf16> : run_layers<bf16, float>) : (y_bf ? run_layers<float, bf16> : run_layers<float, float>);
  return run(layers, stream);
}

bool linear_swiglu_supports(const Linear& p) { return kernels::linear_swiglu_supports(p, this_gpu()); }

Status linear_swiglu(const Linear& p, Stream stream) {
  if (p.rows == 0 || p.out == 0) return {};
  if (!linear_swiglu_supports(p)) return {"linear_swiglu: too many rows, an odd number of outputs, or rows of no multiple of 16 bytes"};
  if (p.rows > 1) return linear_swiglu_sm90(p, stream);
  auto* run = p.dtype == DType::bf16 ? run_rows<bf16, bf16, 1, 2> : run_rows<float, float, 1, 2>;
  return run(p, stream);
}

}  // namespace based::kernels::cuda
