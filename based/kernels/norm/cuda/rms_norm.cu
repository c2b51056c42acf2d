// RMSNorm with the residual addition: each element is read once and written once.
#include "based/kernels/norm/rms_norm.h"

#include <algorithm>

#include "based/kernels/common/cuda/column_sums.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kUnit = 8;  // elements a thread handles at a time
constexpr int kHeld = 4;  // units of a row that a thread keeps in registers

constexpr int kMostThreads = 256;

constexpr int kBackwardThreads = 1024;  // the threads of norm_rows_backward on a multiprocessor, which its registers limit

int norm_threads(int64_t width, int units) { return static_cast<int>(round_up(ceil_div(width, kUnit * units), 32)); }

// Element c of unit u of this thread; kVector: the width is a multiple of kUnit and everything is aligned.
template <bool kVector>
struct RowAccess {
  int64_t width;
  __device__ __forceinline__ int64_t at(int u) const { return (static_cast<int64_t>(u) * blockDim.x + threadIdx.x) * kUnit; }
  template <typename T>
  __device__ __forceinline__ void load(const T* row, int u, float (&to)[kUnit]) const {
    const int64_t i = at(u);
    if constexpr (kVector) {
      if (i < width) return load_floats<kUnit>(row + i, to);
    }
#pragma unroll
    for (int c = 0; c < kUnit; ++c) to[c] = i + c < width ? to_float(row[i + c]) : 0.0F;
  }
  template <typename T>
  __device__ __forceinline__ void store(T* row, int u, const float (&from)[kUnit]) const {
    const int64_t i = at(u);
    if constexpr (kVector) {
      if (i < width) store_floats<kUnit>(row + i, from);
    } else {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        if (i + c < width) row[i + c] = from_float<T>(from[c]);
      }
    }
  }
};

// kUnits: units of the row that a thread holds; narrow rows are spread over more threads, so that little is waited for in turn.
template <typename X, typename T, bool kVector, int kUnits>
__global__ void __launch_bounds__(kMostThreads) norm_rows(const __grid_constant__ RmsNorm p) {
  __shared__ float shared[32];
  overlap_kernels();
  const RowAccess<kVector> access{p.width};
  const int64_t row = blockIdx.x;
  float s[kUnits][kUnit], weight[kUnits][kUnit], squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (p.x != nullptr) {
      access.load(static_cast<const X*>(p.x) + row * p.width, u, s[u]);
    } else {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) s[u][c] = 0;
    }
    access.load(static_cast<const T*>(p.weight), u, weight[u]);
    float deferred[kUnit] = {}, add[kUnit] = {};
    if (p.deferred != nullptr) access.load(static_cast<const T*>(p.deferred) + row * p.width, u, deferred);
    if (p.add != nullptr) access.load(static_cast<const T*>(p.add) + row * p.width, u, add);
#pragma unroll
    for (int c = 0; c < kUnit; ++c) s[u][c] = (s[u][c] + deferred[c]) + add[c];
#pragma unroll
    for (int c = 0; c < kUnit; ++c) squares = fmaf(s[u][c], s[u][c], squares);
  }
  const float r = rsqrtf(sum_over_block(squares, shared) / static_cast<float>(p.width) + p.eps);
  if (p.inverse_rms != nullptr && threadIdx.x == 0) p.inverse_rms[row] = r;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (p.sum != nullptr) access.store(static_cast<X*>(p.sum) + row * p.width, u, s[u]);
#pragma unroll
    for (int c = 0; c < kUnit; ++c) weight[u][c] *= s[u][c] * r;
    if (p.gate != nullptr) {
      access.load(static_cast<const T*>(p.gate) + row * p.width, u, s[u]);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) weight[u][c] *= s[u][c] * sigmoid(s[u][c]);
    }
    access.store(static_cast<T*>(p.y) + row * p.width, u, weight[u]);
  }
}

// Rows of kUnit · kLanes, such as heads have: kLanes threads a row, in norm_rows' order of additions.
template <typename X, typename T, int kLanes>
__global__ void __launch_bounds__(kMostThreads) norm_short_rows(const __grid_constant__ RmsNorm p) {
  overlap_kernels();
  const int64_t row = blockIdx.x * int64_t{kMostThreads / kLanes} + threadIdx.x / kLanes;
  if (row - row % (32 / kLanes) >= p.rows) return;  // the whole warp
  const bool inside = row < p.rows;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kUnit;
  const int64_t at = (inside ? row : p.rows - 1) * p.width + column;
  float s[kUnit], weight[kUnit], gate[kUnit], squares = 0;
  load_floats<kUnit>(static_cast<const X*>(p.x) + at, s);
  load_floats<kUnit>(static_cast<const T*>(p.weight) + column, weight);
  if (p.gate != nullptr) load_floats<kUnit>(static_cast<const T*>(p.gate) + at, gate);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) squares = fmaf(s[c], s[c], squares);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0U, squares, distance);
  const float r = rsqrtf(squares / static_cast<float>(p.width) + p.eps);
  if (!inside) return;
  if (p.inverse_rms != nullptr && column == 0) p.inverse_rms[row] = r;
#pragma unroll
  for (int c = 0; c < kUnit; ++c) {
    s[c] = weight[c] * (s[c] * r);
    if (p.gate != nullptr) s[c] *= gate[c] * sigmoid(gate[c]);
  }
  store_floats<kUnit>(static_cast<T*>(p.y) + at, s);
}

template <typename X, typename T>
Status norm_short(const RmsNorm& p, Queue queue) {
  const auto lanes = static_cast<int>(p.width / kUnit);
  const Launch launch{static_cast<unsigned>(ceil_div(p.rows, kMostThreads / lanes)), kMostThreads};
  auto* kernel = lanes == 8 ? norm_short_rows<X, T, 8> : lanes == 16 ? norm_short_rows<X, T, 16> : norm_short_rows<X, T, 32>;
  return launch_overlapped(kernel, launch, queue, p);
}

template <int kUnits>
auto* choose_norm(const RmsNorm& p, bool vector) {
  const bool x_bf = p.x_dtype == DType::bf16, bf = p.dtype == DType::bf16;
  return x_bf ? (bf ? (vector ? norm_rows<bf16, bf16, true, kUnits> : norm_rows<bf16, bf16, false, kUnits>)
                    : (vector ? norm_rows<bf16, float, true, kUnits> : norm_rows<bf16, float, false, kUnits>))
              : (bf ? (vector ? norm_rows<float, bf16, true, kUnits> : norm_rows<float, bf16, false, kUnits>)
                    : (vector ? norm_rows<float, float, true, kUnits> : norm_rows<float, float, false, kUnits>));
}

// Adds `value` up over the block, at most kMostThreads; every thread gets the sum. `shared` must not be that of the call before.
__device__ __forceinline__ float sum_with_one_barrier(float value, float (&shared)[kMostThreads / 32]) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
  if (blockDim.x == 32) return value;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMostThreads / 32; ++i) sum += i < blockDim.x / 32 ? shared[i] : 0.0F;
  return sum;
}

// Rows blockIdx.x, + gridDim.x, …: their gradients, and the block's part of grad_weight in `partial` [blocks, width].
template <typename X, typename T, bool kVector, int kUnits>
__global__ void __launch_bounds__(kMostThreads, kUnits == 1 ? kBackwardThreads / kMostThreads : 1)
    norm_rows_backward(const __grid_constant__ RmsNormBackward p, float* partial) {
  __shared__ float shared[2][kMostThreads / 32];
  overlap_kernels();
  const RmsNorm& f = p.forward;
  const RowAccess<kVector> access{f.width};
  float weight[kUnits][kUnit], sum[kUnits][kUnit] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) access.load(static_cast<const T*>(f.weight), u, weight[u]);
  int parity = 0;
  for (int64_t row = blockIdx.x; row < f.rows; row += gridDim.x, parity ^= 1) {
    const float r = f.inverse_rms[row];
    float x[kUnits][kUnit], g[kUnits][kUnit], other[kUnits][kUnit] = {}, dot = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      access.load(static_cast<const X*>(f.x) + row * f.width, u, x[u]);
      access.load(static_cast<const T*>(p.grad_y) + row * f.width, u, g[u]);
      if (p.grad_sum != nullptr) access.load(static_cast<const T*>(p.grad_sum) + row * f.width, u, other[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        x[u][c] *= r;
        sum[u][c] = fmaf(g[u][c], x[u][c], sum[u][c]);
        g[u][c] *= weight[u][c];
        dot = fmaf(g[u][c], x[u][c], dot);
      }
    }
    dot = sum_with_one_barrier(dot, shared[parity]) / static_cast<float>(f.width);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) g[u][c] = __fadd_rn(r * (g[u][c] - x[u][c] * dot), other[u][c]);  // as two sums apart
      if (p.grad_x != nullptr) access.store(static_cast<X*>(p.grad_x) + row * f.width, u, g[u]);
      if (p.grad_add != nullptr) access.store(static_cast<T*>(p.grad_add) + row * f.width, u, g[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) access.store(partial + blockIdx.x * f.width, u, sum[u]);
}

template <int kUnits>
auto* choose_norm_backward(const RmsNorm& p, bool vector) {
  const bool x_bf = p.x_dtype == DType::bf16, bf = p.dtype == DType::bf16;
  return x_bf ? (bf ? (vector ? norm_rows_backward<bf16, bf16, true, kUnits> : norm_rows_backward<bf16, bf16, false, kUnits>)
                    : (vector ? norm_rows_backward<bf16, float, true, kUnits> : norm_rows_backward<bf16, float, false, kUnits>))
              : (bf ? (vector ? norm_rows_backward<float, bf16, true, kUnits> : norm_rows_backward<float, bf16, false, kUnits>)
                    : (vector ? norm_rows_backward<float, float, true, kUnits> : norm_rows_backward<float, float, false, kUnits>));
}

__global__ void __launch_bounds__(kSumThreads) sum_columns(const float* partial, int64_t parts, int64_t width, float* to) {
  overlap_kernels();
  const float sum = sum_column_of_warp(partial, parts, width);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0 && column < width) to[column] = sum;
}

bool is_narrow(const RmsNorm& p) { return p.width <= kUnit * kMostThreads; }

int64_t norm_blocks(const RmsNorm& p) {
  const int threads = std::max(32, norm_threads(p.width, is_narrow(p) ? 1 : kHeld));
  return std::min<int64_t>(p.rows, int64_t{multiprocessors()} * std::clamp(kBackwardThreads / threads, 1, 16));
}

bool norm_aligned(const RmsNorm& p) {
  return p.width % kUnit == 0 && aligned16(p.x) && aligned16(p.add) && aligned16(p.deferred) && aligned16(p.sum) && aligned16(p.weight) &&
         aligned16(p.y) && aligned16(p.gate);
}

bool is_short(const RmsNorm& p) {
  const bool plain = p.x != nullptr && p.add == nullptr && p.deferred == nullptr && p.sum == nullptr;
  return plain && (p.width == 8 * kUnit || p.width == 16 * kUnit || p.width == 32 * kUnit) && norm_aligned(p);
}

static_assert(kRmsNormMostWidth == kUnit * kHeld * kMostThreads);
constexpr const char* kTooWide = "rms_norm: width is larger than 8192";

}  // namespace

Status rms_norm_forward(const RmsNorm& p, Queue queue) {
  if (p.rows == 0) return {};
  if (is_short(p)) {
    const bool bf = p.dtype == DType::bf16;
    if (p.x_dtype == DType::bf16) return bf ? norm_short<bf16, bf16>(p, queue) : norm_short<bf16, float>(p, queue);
    return bf ? norm_short<float, bf16>(p, queue) : norm_short<float, float>(p, queue);
  }
  const bool narrow = is_narrow(p);
  const int threads = norm_threads(p.width, narrow ? 1 : kHeld);
  if (threads > kMostThreads) return {kTooWide};
  auto* kernel = narrow ? choose_norm<1>(p, norm_aligned(p)) : choose_norm<kHeld>(p, norm_aligned(p));
  return launch_overlapped(kernel, {static_cast<unsigned>(p.rows), static_cast<unsigned>(threads)}, queue, p);
}

int64_t rms_norm_backward_scratch(const RmsNormBackward& p) { return norm_blocks(p.forward) * p.forward.width * 4; }

Status rms_norm_backward(const RmsNormBackward& p, void* scratch, Queue queue) {
  const RmsNorm& f = p.forward;
  if (f.width == 0) return {};
  const bool narrow = is_narrow(f);
  const int threads = norm_threads(f.width, narrow ? 1 : kHeld);
  if (threads > kMostThreads) return {kTooWide};
  const int64_t blocks = norm_blocks(f);
  auto* partial = static_cast<float*>(scratch);
  const bool vector =
      norm_aligned(f) && aligned16(p.grad_y) && aligned16(p.grad_sum) && aligned16(p.grad_x) && aligned16(p.grad_add) && aligned16(scratch);
  auto* kernel = narrow ? choose_norm_backward<1>(f, vector) : choose_norm_backward<kHeld>(f, vector);
  if (f.rows != 0) {
    const Status status = launch_overlapped(kernel, {static_cast<unsigned>(blocks), static_cast<unsigned>(threads)}, queue, p, partial);
    if (!status.ok()) return status;
  }
  const Launch sums{static_cast<unsigned>(ceil_div(f.width, kSumColumns)), kSumThreads};
  return launch_overlapped(sum_columns, sums, queue, partial, blocks, f.width, p.grad_weight);
}

namespace {
const DefineLaunchers<RmsNormLaunchers> kLaunchers(Device::cuda, {.forward = rms_norm_forward,
                                                                  .backward_scratch = rms_norm_backward_scratch,
                                                                  .backward = rms_norm_backward,
                                                                  .max_width = kRmsNormMostWidth});
}

}  // namespace based::kernels::cuda
