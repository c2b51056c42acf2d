// LayerNorm with the residual addition: each element is read once and written once, by a part of a warp that holds its row in registers.
#include "based/kernels/layer_norm.h"

#include <algorithm>
#include <bit>

#include "based/kernels/cuda/column_sums.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kUnit = 4;  // elements a lane handles at a time: 16 bytes of fp32
constexpr int kThreads = 256;
constexpr int64_t kMostWidth = 1024;
constexpr int64_t kMostBlocks = 5;  // of a narrow backward on a multiprocessor: what its registers allow

// How a row lies in kLanes lanes, kUnits units each; kVector: the width is a multiple of kUnit and everything is aligned.
template <int kLanes, int kUnits, bool kVector>
struct Row {
  static constexpr int kRows = kThreads / kLanes;  // of a block
  int64_t width;
  __device__ __forceinline__ static int lane() { return threadIdx.x % kLanes; }
  __device__ __forceinline__ static int64_t first() { return blockIdx.x * int64_t{kRows} + threadIdx.x / kLanes; }
  __device__ __forceinline__ static int at(int u) { return (u * kLanes + lane()) * kUnit; }
  __device__ __forceinline__ bool has(int u, int c) const { return at(u) + (kVector ? 0 : c) < width; }
  template <typename T>
  __device__ __forceinline__ void load(const void* rows, int64_t row, int u, float (&to)[kUnit]) const {
    const T* from = static_cast<const T*>(rows) + row * width + at(u);
    if constexpr (kVector) {
      if (has(u, 0)) return load_floats<kUnit>(from, to);
    }
#pragma unroll
    for (int c = 0; c < kUnit; ++c) to[c] = !kVector && has(u, c) ? to_float(from[c]) : 0.0F;
  }
  template <typename T>
  __device__ __forceinline__ void store(void* rows, int64_t row, int u, const float (&from)[kUnit]) const {
    T* to = static_cast<T*>(rows) + row * width + at(u);
    if constexpr (kVector) {
      if (has(u, 0)) store_floats<kUnit>(to, from);
    } else {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        if (has(u, c)) to[c] = from_float<T>(from[c]);
      }
    }
  }
  // Over the lanes of the row, in a fixed order; every one gets the sum. All lanes of the warp take part.
  __device__ __forceinline__ static float sum(float value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
    return value;
  }
};

template <typename X, typename T, typename Rows>
__device__ __forceinline__ void load_sum(const LayerNorm& p, const Rows& in, int64_t row, int u, float (&s)[kUnit]) {
  float add[kUnit] = {};
  if (p.add != nullptr) in.template load<T>(p.add, row, u, add);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) s[c] = 0;
  if (p.x != nullptr) in.template load<X>(p.x, row, u, s);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) s[c] += add[c];
}

template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ LayerNorm p) {
  using Rows = Row<kLanes, kUnits, kVector>;
  overlap_kernels();
  const Rows in{p.width};
  const int64_t row = Rows::first(), from = min(row, p.rows - 1);  // lanes without a row take part in the sums
  const float width = static_cast<float>(p.width);
  float s[kUnits][kUnit], total = 0, squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    load_sum<X, T>(p, in, from, u, s[u]);
#pragma unroll
    for (int c = 0; c < kUnit; ++c) total += s[u][c];
  }
  const float mean = Rows::sum(total) / width;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int c = 0; c < kUnit; ++c) {
      const float d = in.has(u, c) ? s[u][c] - mean : 0.0F;
      squares = fmaf(d, d, squares);
    }
  }
  const float r = rsqrtf(Rows::sum(squares) / width + p.eps);
  if (row >= p.rows) return;
  if (p.mean != nullptr && Rows::lane() == 0) p.mean[row] = mean, p.inverse_std[row] = r;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (p.sum != nullptr) in.template store<X>(p.sum, row, u, s[u]);
    float weight[kUnit], y[kUnit];
    in.template load<T>(p.weight, 0, u, weight), in.template load<T>(p.bias, 0, u, y);
#pragma unroll
    for (int c = 0; c < kUnit; ++c) y[c] = fmaf((s[u][c] - mean) * r, weight[c], y[c]);
    in.template store<T>(p.y, row, u, y);
  }
}

// The block's sums of what its lanes have of columns, in a fixed order, to `to` [width]. `shared`: kMostWidth floats.
template <typename Rows, int kUnits>
__device__ __forceinline__ void add_up_rows(const Rows& in, float (&sum)[kUnits][kUnit], float* shared, float* to) {
  constexpr int kLanes = kThreads / Rows::kRows;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int c = 0; c < kUnit; ++c) {
#pragma unroll
      for (int distance = 16; distance >= kLanes; distance /= 2) sum[u][c] += __shfl_xor_sync(~0U, sum[u][c], distance);
    }
  }
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (threadIdx.x / 32 == warp && threadIdx.x % 32 < kLanes) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int c = 0; c < kUnit; ++c) {
          if (in.has(u, c)) shared[Rows::at(u) + c] = (warp == 0 ? 0.0F : shared[Rows::at(u) + c]) + sum[u][c];
        }
      }
    }
    __syncthreads();
  }
  for (int64_t i = threadIdx.x; i < in.width; i += kThreads) to[i] = shared[i];
  __syncthreads();
}

// Rows of a block, then those gridDim.x blocks further on, …: their gradients, and the block's part of grad_weight and grad_bias in
// `partial` [blocks, 2, width].
template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_backward(const __grid_constant__ LayerNormBackward p, float* partial) {
  using Rows = Row<kLanes, kUnits, kVector>;
  __shared__ float shared[kMostWidth];
  overlap_kernels();
  const LayerNorm& f = p.forward;
  const Rows in{f.width};
  const float width = static_cast<float>(f.width);
  float weight_sum[kUnits][kUnit] = {}, bias_sum[kUnits][kUnit] = {};
  for (int64_t begin = blockIdx.x * int64_t{Rows::kRows}; begin < f.rows; begin += int64_t{gridDim.x} * Rows::kRows) {
    const int64_t row = begin + threadIdx.x / kLanes, from = min(row, f.rows - 1);  // lanes without a row take part in the sums
    const bool mine = row < f.rows;
    const float mean = f.mean[from], r = f.inverse_std[from];
    float unit[kUnits][kUnit], g[kUnits][kUnit], other[kUnits][kUnit] = {}, sum = 0, dot = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      in.template load<X>(f.x, from, u, unit[u]);
      in.template load<T>(p.grad_y, from, u, g[u]);
      if (p.grad_sum != nullptr) in.template load<T>(p.grad_sum, from, u, other[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float weight[kUnit];
      in.template load<T>(f.weight, 0, u, weight);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        unit[u][c] = (unit[u][c] - mean) * r;
        weight_sum[u][c] = fmaf(mine ? g[u][c] : 0.0F, unit[u][c], weight_sum[u][c]);
        bias_sum[u][c] += mine ? g[u][c] : 0.0F;
        g[u][c] *= weight[c];
        sum += g[u][c];
        dot = fmaf(g[u][c], unit[u][c], dot);
      }
    }
    sum = Rows::sum(sum) / width, dot = Rows::sum(dot) / width;
    if (!mine) continue;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) g[u][c] = __fadd_rn(r * (g[u][c] - sum - unit[u][c] * dot), other[u][c]);  // as two sums apart
      in.template store<T>(p.grad_x, row, u, g[u]);
    }
  }
  float* to = partial + blockIdx.x * 2 * f.width;
  add_up_rows(in, weight_sum, shared, to);
  add_up_rows(in, bias_sum, shared, to + f.width);
}

__global__ void __launch_bounds__(kSumThreads)
    sum_columns(const float* partial, int64_t parts, int64_t width, float* grad_weight, float* grad_bias) {
  overlap_kernels();
  const float sum = sum_column_of_warp(partial, parts, 2 * width);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0 && column < 2 * width) (column < width ? grad_weight : grad_bias - width)[column] = sum;
}

int64_t backward_blocks(const LayerNorm& p) {
  const int64_t lanes = p.width <= 32 ? 8 : p.width <= 64 ? 16 : 32;  // of a row, as choose() has them
  const int64_t resident = std::min(kMostBlocks, kMostWidth / static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.width))));
  return std::max<int64_t>(1, std::min(ceil_div(p.rows, kThreads / lanes), multiprocessors() * resident));
}

// `launch.operator()<kLanes, kUnits, kVector>()` with what the width asks for; in any case it is right.
template <typename Launcher>
Status choose(int64_t width, bool vector, Launcher&& launch) {
  if (!vector) return launch.template operator()<32, 8, false>();
  if (width <= 32) return launch.template operator()<8, 1, true>();
  if (width <= 64) return launch.template operator()<16, 1, true>();
  if (width <= 128) return launch.template operator()<32, 1, true>();
  if (width <= 256) return launch.template operator()<32, 2, true>();
  if (width <= 512) return launch.template operator()<32, 4, true>();
  return launch.template operator()<32, 8, true>();
}

// The same with the types: `launch.operator()<X, T>()`.
template <typename Launcher>
Status choose_types(const LayerNorm& p, Launcher&& launch) {
  if (p.dtype == DType::f32) return launch.template operator()<float, float>();
  return p.x_dtype == DType::f32 ? launch.template operator()<float, bf16>() : launch.template operator()<bf16, bf16>();
}

bool is_aligned(const LayerNorm& p) {
  return p.width % kUnit == 0 && aligned16(p.x) && aligned16(p.add) && aligned16(p.sum) && aligned16(p.weight) && aligned16(p.bias) &&
         aligned16(p.y);
}

constexpr const char* kUnsupported = "layer_norm: width or types have no kernel";

}  // namespace

bool layer_norm_supports(int64_t width, DType x_dtype, DType dtype) {
  return width >= 1 && width <= kMostWidth && (x_dtype == DType::f32 || x_dtype == dtype);
}

Status layer_norm_forward(const LayerNorm& p, Stream stream) {
  if (!layer_norm_supports(p.width, p.x_dtype, p.dtype)) return {kUnsupported};
  if (p.rows == 0) return {};
  return choose_types(p, [&]<typename X, typename T>() {
    return choose(p.width, is_aligned(p), [&]<int kLanes, int kUnits, bool kVector>() {
      const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kThreads / kLanes));
      return launch_overlapped(norm_rows<X, T, kLanes, kUnits, kVector>, {blocks, kThreads}, stream, p);
    });
  });
}

int64_t layer_norm_backward_scratch(const LayerNormBackward& p) { return backward_blocks(p.forward) * 2 * p.forward.width * 4; }

Status layer_norm_backward(const LayerNormBackward& p, void* scratch, Stream stream) {
  const LayerNorm& f = p.forward;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  const int64_t blocks = backward_blocks(f);
  auto* partial = static_cast<float*>(scratch);
  const bool vector = is_aligned(f) && aligned16(p.grad_y) && aligned16(p.grad_sum) && aligned16(p.grad_x);
  const Status status = choose_types(f, [&]<typename X, typename T>() {
    return choose(f.width, vector, [&]<int kLanes, int kUnits, bool kVector>() {
      const Launch launch{static_cast<unsigned>(blocks), kThreads};
      return launch_overlapped(norm_rows_backward<X, T, kLanes, kUnits, kVector>, launch, stream, p, partial);
    });
  });
  if (!status.ok()) return status;
  const Launch sums{static_cast<unsigned>(ceil_div(2 * f.width, kSumColumns)), kSumThreads};
  return launch_overlapped(sum_columns, sums, stream, partial, blocks, f.width, p.grad_weight, p.grad_bias);
}

}  // namespace based::kernels::cuda
