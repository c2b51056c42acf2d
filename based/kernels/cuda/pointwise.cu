// RMSNorm with the residual addition, SwiGLU, rotary positions: each element is read once and written once.
#include "based/kernels/pointwise.h"

#include <algorithm>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kUnit = 8;  // elements a thread handles at a time
constexpr int kHeld = 4;  // units of a row that a thread keeps in registers

constexpr int kMostThreads = 256;

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
  const RowAccess<kVector> access{p.width};
  const int64_t row = blockIdx.x;
  float s[kUnits][kUnit], weight[kUnits][kUnit], squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    access.load(static_cast<const X*>(p.x) + row * p.width, u, s[u]);
    access.load(static_cast<const T*>(p.weight), u, weight[u]);
    if (p.add != nullptr) {
      float add[kUnit];
      access.load(static_cast<const T*>(p.add) + row * p.width, u, add);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) s[u][c] += add[c];
    }
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
    access.store(static_cast<T*>(p.y) + row * p.width, u, weight[u]);
  }
}

template <int kUnits>
auto* choose_norm(const RmsNorm& p, bool vector) {
  const bool x_bf = p.x_dtype == DType::bf16, bf = p.dtype == DType::bf16;
  return x_bf ? (bf ? (vector ? norm_rows<bf16, bf16, true, kUnits> : norm_rows<bf16, bf16, false, kUnits>)
                    : (vector ? norm_rows<bf16, float, true, kUnits> : norm_rows<bf16, float, false, kUnits>))
              : (bf ? (vector ? norm_rows<float, bf16, true, kUnits> : norm_rows<float, bf16, false, kUnits>)
                    : (vector ? norm_rows<float, float, true, kUnits> : norm_rows<float, float, false, kUnits>));
}

// Rows blockIdx.x, + gridDim.x, …: grad_x, and the block's part of grad_weight in `partial` [blocks, width].
template <typename X, typename T, bool kVector>
__global__ void __launch_bounds__(kMostThreads) norm_rows_backward(const __grid_constant__ RmsNormBackward p, float* partial) {
  __shared__ float shared[32];
  const RmsNorm& f = p.forward;
  const RowAccess<kVector> access{f.width};
  float weight[kHeld][kUnit], sum[kHeld][kUnit] = {};
#pragma unroll
  for (int u = 0; u < kHeld; ++u) access.load(static_cast<const T*>(f.weight), u, weight[u]);
  for (int64_t row = blockIdx.x; row < f.rows; row += gridDim.x) {
    const float r = f.inverse_rms[row];
    float x[kHeld][kUnit], g[kHeld][kUnit], dot = 0;
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      access.load(static_cast<const X*>(f.x) + row * f.width, u, x[u]);
      access.load(static_cast<const T*>(p.grad_y) + row * f.width, u, g[u]);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        x[u][c] *= r;
        sum[u][c] = fmaf(g[u][c], x[u][c], sum[u][c]);
        g[u][c] *= weight[u][c];
        dot = fmaf(g[u][c], x[u][c], dot);
      }
    }
    dot = sum_over_block(dot, shared) / static_cast<float>(f.width);
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) g[u][c] = r * (g[u][c] - x[u][c] * dot);
      access.store(static_cast<X*>(p.grad_x) + row * f.width, u, g[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kHeld; ++u) access.store(partial + blockIdx.x * f.width, u, sum[u]);
}

__global__ void sum_columns(const float* partial, int64_t parts, int64_t width, float* to) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (column >= width) return;
  float sum = 0;
  for (int64_t i = 0; i < parts; ++i) sum += partial[i * width + column];
  to[column] = sum;
}

template <typename T, int kCount>
__global__ void swiglu_units(const __grid_constant__ Swiglu p) {
  const int64_t units = p.width / kCount, at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at >= p.rows * units) return;
  const int64_t row = at / units, column = at % units * kCount;
  const T* h = static_cast<const T*>(p.h) + row * 2 * p.width + column;
  float y[kCount], gate[kCount];
  load_floats<kCount>(h, y), load_floats<kCount>(h + p.width, gate);
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] *= gate[i] * sigmoid(gate[i]);
  store_floats<kCount>(static_cast<T*>(p.y) + row * p.width + column, y);
}

template <typename T, int kCount>
__global__ void swiglu_units_backward(const __grid_constant__ SwigluBackward p) {
  const Swiglu& f = p.forward;
  const int64_t units = f.width / kCount, at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at >= f.rows * units) return;
  const int64_t row = at / units, column = at % units * kCount, place = row * 2 * f.width + column;
  float y[kCount], gate[kCount], g[kCount];
  load_floats<kCount>(static_cast<const T*>(f.h) + place, y), load_floats<kCount>(static_cast<const T*>(f.h) + place + f.width, gate);
  load_floats<kCount>(static_cast<const T*>(p.grad_y) + row * f.width + column, g);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float s = sigmoid(gate[i]), silu = gate[i] * s;
    gate[i] = g[i] * y[i] * (s + silu * (1 - s));
    y[i] = g[i] * silu;
  }
  store_floats<kCount>(static_cast<T*>(p.grad_h) + place, y), store_floats<kCount>(static_cast<T*>(p.grad_h) + place + f.width, gate);
}

// One block a token: the angles once, then all heads.
template <typename T>
__global__ void rotate_tokens(const __grid_constant__ Rotary p) {
  __shared__ float cosines[128], sines[128];
  const int64_t token = blockIdx.x;
  const int pairs = p.dim / 2;
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const double angle = static_cast<double>(p.position[token]) * exp2(-2.0 * i / p.dim * log2(p.base));
    constexpr double kTurn = 6.283185307179586476925;
    float s, c;
    sincosf(static_cast<float>(angle - kTurn * rint(angle / kTurn)), &s, &c);
    cosines[i] = c, sines[i] = p.inverse ? -s : s;
  }
  __syncthreads();
  const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
  T* y = static_cast<T*>(p.y) + token * p.y_stride;
  const int kept = p.head_dim - p.dim, work = pairs + kept;  // of one head: pairs to rotate, then elements to copy
  for (int i = threadIdx.x; i < p.heads * work; i += blockDim.x) {
    const int64_t head = static_cast<int64_t>(i / work) * p.head_dim;
    const int n = i % work;
    if (n >= pairs) {
      y[head + p.dim + n - pairs] = x[head + p.dim + n - pairs];
      continue;
    }
    const int64_t ia = head + (p.interleaved ? 2 * n : n), ib = head + (p.interleaved ? 2 * n + 1 : n + pairs);
    const float a = to_float(x[ia]), b = to_float(x[ib]);
    y[ia] = from_float<T>(a * cosines[n] - b * sines[n]), y[ib] = from_float<T>(a * sines[n] + b * cosines[n]);
  }
}

template <typename Kernel, typename Params>
Status launch_units(Kernel* kernel, const Params& p, int64_t units, Stream stream) {
  if (units == 0) return {};
  kernel<<<static_cast<unsigned>(ceil_div(units, 256)), 256, 0, stream_of(stream)>>>(p);
  return launched();
}

int64_t norm_blocks(const RmsNorm& p) { return std::min<int64_t>(p.rows, 4 * multiprocessors()); }

bool norm_aligned(const RmsNorm& p) {
  return p.width % kUnit == 0 && aligned16(p.x) && aligned16(p.add) && aligned16(p.sum) && aligned16(p.weight) && aligned16(p.y);
}

constexpr const char* kTooWide = "rms_norm: width is larger than 8192";

}  // namespace

Status rms_norm_forward(const RmsNorm& p, Stream stream) {
  if (p.rows == 0) return {};
  const bool narrow = p.width <= kUnit * kMostThreads;
  const int threads = norm_threads(p.width, narrow ? 1 : kHeld);
  if (threads > kMostThreads) return {kTooWide};
  auto* kernel = narrow ? choose_norm<1>(p, norm_aligned(p)) : choose_norm<kHeld>(p, norm_aligned(p));
  kernel<<<static_cast<unsigned>(p.rows), threads, 0, stream_of(stream)>>>(p);
  return launched();
}

int64_t rms_norm_backward_scratch(const RmsNormBackward& p) { return norm_blocks(p.forward) * p.forward.width * 4; }

Status rms_norm_backward(const RmsNormBackward& p, void* scratch, Stream stream) {
  const RmsNorm& f = p.forward;
  const int threads = norm_threads(f.width, kHeld);
  if (threads > kMostThreads) return {kTooWide};
  const int64_t blocks = norm_blocks(f);
  auto* partial = static_cast<float*>(scratch);
  const bool x_bf = f.x_dtype == DType::bf16, bf = f.dtype == DType::bf16,
             vector = norm_aligned(f) && aligned16(p.grad_y) && aligned16(p.grad_x) && aligned16(scratch);
  auto* kernel = x_bf ? (bf ? (vector ? norm_rows_backward<bf16, bf16, true> : norm_rows_backward<bf16, bf16, false>)
                            : (vector ? norm_rows_backward<bf16, float, true> : norm_rows_backward<bf16, float, false>))
                      : (bf ? (vector ? norm_rows_backward<float, bf16, true> : norm_rows_backward<float, bf16, false>)
                            : (vector ? norm_rows_backward<float, float, true> : norm_rows_backward<float, float, false>));
  if (f.rows != 0) kernel<<<static_cast<unsigned>(blocks), threads, 0, stream_of(stream)>>>(p, partial);
  sum_columns<<<static_cast<unsigned>(ceil_div(f.width, 64)), 64, 0, stream_of(stream)>>>(partial, blocks, f.width, p.grad_weight);
  return launched();
}

Status swiglu_forward(const Swiglu& p, Stream stream) {
  const bool bf = p.dtype == DType::bf16, vector = p.width % kUnit == 0 && aligned16(p.h) && aligned16(p.y);
  auto* kernel =
      bf ? (vector ? swiglu_units<bf16, kUnit> : swiglu_units<bf16, 1>) : (vector ? swiglu_units<float, kUnit> : swiglu_units<float, 1>);
  return launch_units(kernel, p, p.rows * p.width / (vector ? kUnit : 1), stream);
}

Status swiglu_backward(const SwigluBackward& p, Stream stream) {
  const Swiglu& f = p.forward;
  const bool bf = f.dtype == DType::bf16, vector = f.width % kUnit == 0 && aligned16(f.h) && aligned16(p.grad_y) && aligned16(p.grad_h);
  auto* kernel = bf ? (vector ? swiglu_units_backward<bf16, kUnit> : swiglu_units_backward<bf16, 1>)
                    : (vector ? swiglu_units_backward<float, kUnit> : swiglu_units_backward<float, 1>);
  return launch_units(kernel, p, f.rows * f.width / (vector ? kUnit : 1), stream);
}

Status rotary(const Rotary& p, Stream stream) {
  if (p.tokens == 0) return {};
  const int64_t work = int64_t{p.heads} * (p.head_dim - p.dim / 2);
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(round_up(work, 32), 32, 256));
  auto* kernel = p.dtype == DType::bf16 ? rotate_tokens<bf16> : rotate_tokens<float>;
  kernel<<<static_cast<unsigned>(p.tokens), threads, 0, stream_of(stream)>>>(p);
  return launched();
}

}  // namespace based::kernels::cuda
