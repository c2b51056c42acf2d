// Shared parts of the LayerNorm kernels. A group of lanes of a warp holds a row in registers.
#pragma once
#include <algorithm>
#include <bit>

#include "based/kernels/common/cuda/column_sums.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/norm/layer_norm.h"

namespace based::kernels::cuda::detail {

constexpr int kUnit = 4;  // elements that a lane loads or stores at a time: 16 bytes of fp32
constexpr int kThreads = 256;
constexpr int64_t kMaxWidth = 1024;

// A row is held by kLanes lanes of kUnits units each. kVector: the width is a multiple of kUnit and all tensors are aligned to 16 bytes.
template <int kLanes, int kUnits, bool kVector>
struct Row {
  static constexpr int kRows = kThreads / kLanes;  // rows of a block
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
  // Sum over the lanes of the row, in a fixed order, returned to all of them. All lanes of the warp must call it.
  __device__ __forceinline__ static float sum(float value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
    return value;
  }
};

// s = x + add, unit u of a row.
template <typename X, typename T, typename Rows>
__device__ __forceinline__ void load_sum(const LayerNorm& p, const Rows& layout, int64_t row, int u, float (&s)[kUnit]) {
  float add[kUnit] = {};
  if (p.add != nullptr) layout.template load<T>(p.add, row, u, add);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) s[c] = 0;
  if (p.x != nullptr) layout.template load<X>(p.x, row, u, s);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) s[c] += add[c];
}

struct Statistics {
  float mean, inverse_std;
};

// The statistics of a row. Elements past the width must be 0.
template <typename Rows, int kUnits>
__device__ __forceinline__ Statistics statistics_of(const Rows& layout, const float (&s)[kUnits][kUnit], float eps) {
  const float width = static_cast<float>(layout.width);
  float total = 0, squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int c = 0; c < kUnit; ++c) total += s[u][c];
  }
  const float mean = Rows::sum(total) / width;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int c = 0; c < kUnit; ++c) {
      const float d = layout.has(u, c) ? s[u][c] - mean : 0.0F;
      squares = fmaf(d, d, squares);
    }
  }
  return {mean, rsqrtf(Rows::sum(squares) / width + eps)};
}

// y = (s − mean) · 1/std · weight + bias for unit u.
template <typename T, typename Rows>
__device__ __forceinline__ void normalise(const Rows& layout, const LayerNorm& p, const Statistics& statistics, int u,
                                          const float (&s)[kUnit], float (&y)[kUnit]) {
  float weight[kUnit];
  layout.template load<T>(p.weight, 0, u, weight), layout.template load<T>(p.bias, 0, u, y);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) y[c] = fmaf((s[c] - statistics.mean) * statistics.inverse_std, weight[c], y[c]);
}

template <typename Rows>
__device__ __forceinline__ void store_statistics(const LayerNorm& p, int64_t row, const Statistics& statistics) {
  if (p.mean != nullptr && Rows::lane() == 0) p.mean[row] = statistics.mean, p.inverse_std[row] = statistics.inverse_std;
}

template <typename T>
__device__ __forceinline__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

// s = (s − mean) · 1/std.
__device__ __forceinline__ void standardise(const Statistics& statistics, float (&s)[kUnit]) {
#pragma unroll
  for (int c = 0; c < kUnit; ++c) s[c] = (s[c] - statistics.mean) * statistics.inverse_std;
}

// A lane's part of the column sums of one norm.
template <int kUnits>
struct ColumnSums {
  float weight[kUnits][kUnit] = {}, bias[kUnits][kUnit] = {};
};

// Backward of y = normalised · weight + bias. On entry g is the gradient of y, on return the gradient of the norm's input plus `other`.
// Where the lane has no row (`mine` is false), the column sums do not change.
template <typename T, typename Rows, int kUnits>
__device__ __forceinline__ void norm_backward(const Rows& layout, const LayerNorm& p, float r, bool mine,
                                              const float (&normalised)[kUnits][kUnit], const float (&other)[kUnits][kUnit],
                                              float (&g)[kUnits][kUnit], ColumnSums<kUnits>& sums) {
  const float width = static_cast<float>(layout.width);
  float sum = 0, dot = 0, weighted[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    float weight[kUnit];
    layout.template load<T>(p.weight, 0, u, weight);
#pragma unroll
    for (int c = 0; c < kUnit; ++c) {
      sums.weight[u][c] = fmaf(mine ? g[u][c] : 0.0F, normalised[u][c], sums.weight[u][c]);
      sums.bias[u][c] += mine ? g[u][c] : 0.0F;
      weighted[u][c] = g[u][c] * weight[c];
      sum += weighted[u][c];
      dot = fmaf(weighted[u][c], normalised[u][c], dot);
    }
  }
  sum = Rows::sum(sum) / width, dot = Rows::sum(dot) / width;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int c = 0; c < kUnit; ++c) g[u][c] = rounded<T>(__fadd_rn(r * (weighted[u][c] - sum - normalised[u][c] * dot), other[u][c]));
  }
}

// Adds up the lanes' column sums over the block, in a fixed order, and stores them to `to` [width]. `shared`: kMaxWidth floats.
template <typename Rows, int kUnits>
__device__ __forceinline__ void add_up_rows(const Rows& layout, float (&sum)[kUnits][kUnit], float* shared, float* to) {
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
          if (layout.has(u, c)) shared[Rows::at(u) + c] = (warp == 0 ? 0.0F : shared[Rows::at(u) + c]) + sum[u][c];
        }
      }
    }
    __syncthreads();
  }
  for (int64_t i = threadIdx.x; i < layout.width; i += kThreads) to[i] = shared[i];
  __syncthreads();
}

// Both column sums of a norm, to `to` [2, width].
template <typename Rows, int kUnits>
__device__ __forceinline__ void add_up_rows(const Rows& layout, ColumnSums<kUnits>& sums, float* shared, float* to) {
  add_up_rows(layout, sums.weight, shared, to);
  add_up_rows(layout, sums.bias, shared, to + layout.width);
}

// The outputs of the kSums column sums, [width] each.
template <int kSums>
struct Columns {
  float* outputs[kSums];
};

template <int kSums>
__global__ void __launch_bounds__(kSumThreads) sum_columns(const float* partial, int64_t parts, int64_t width, Columns<kSums> columns) {
  overlap_kernels();
  const float sum = sum_column_of_warp(partial, parts, kSums * width);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32;
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (column >= i * width && column < (i + 1) * width) columns.outputs[i][column - i * width] = sum;
  }
}

// Number of blocks of a backward: as many as are resident, or fewer where there are fewer rows. A multiprocessor has `most` resident blocks
// for narrow rows and, for wide rows, as many as have `columns` columns in total.
inline int64_t backward_blocks(const LayerNorm& p, int64_t most, int64_t columns) {
  const int64_t lanes = p.width <= 32 ? 8 : p.width <= 64 ? 16 : 32;  // lanes of a row, as in choose_row()
  const int64_t resident =
      std::min(most, std::max<int64_t>(1, columns / static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.width)))));
  return std::max<int64_t>(1, std::min(ceil_div(p.rows, kThreads / lanes), multiprocessors() * resident));
}

// Calls `launch.operator()<kLanes, kUnits, kVector>()` with the fastest layout for the width.
template <typename Launcher>
Status choose_row(int64_t width, bool vector, Launcher&& launch) {
  if (!vector) return launch.template operator()<32, 8, false>();
  if (width <= 32) return launch.template operator()<8, 1, true>();
  if (width <= 64) return launch.template operator()<16, 1, true>();
  if (width <= 128) return launch.template operator()<32, 1, true>();
  if (width <= 256) return launch.template operator()<32, 2, true>();
  if (width <= 512) return launch.template operator()<32, 4, true>();
  return launch.template operator()<32, 8, true>();
}

// Calls `launch.operator()<X, T>()` for the types of p.
template <typename Launcher>
Status choose_types(const LayerNorm& p, Launcher&& launch) {
  if (p.dtype == DType::f32) return launch.template operator()<float, float>();
  return p.x_dtype == DType::f32 ? launch.template operator()<float, bf16>() : launch.template operator()<bf16, bf16>();
}

inline bool is_aligned(const LayerNorm& p) {
  return p.width % kUnit == 0 && aligned16(p.x) && aligned16(p.add) && aligned16(p.sum) && aligned16(p.weight) && aligned16(p.bias) &&
         aligned16(p.y);
}

}  // namespace based::kernels::cuda::detail
