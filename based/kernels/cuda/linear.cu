// Few rows: a warp an output, so that every weight is read once, 16 bytes a lane, and the additions of an output happen in an order that
// depends on `in` alone. Bound by reading the weights.
#include "based/kernels/linear.h"

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kWarps = 4;   // of a block
constexpr int kFlight = 8;  // units of a weight's row that a lane has under way

template <typename T, typename Y, int kRows>
__global__ void __launch_bounds__(32 * kWarps) few_rows(const __grid_constant__ Linear p) {
  constexpr int kUnit = 16 / sizeof(T);
  const int64_t out = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, units = static_cast<int>(p.in / kUnit);
  if (out >= p.out) return;
  const T* weight = static_cast<const T*>(p.weight) + out * p.weight_stride;
  const T* x = static_cast<const T*>(p.x);
  float sum[kRows] = {};
  for (int first = lane; first < units; first += 32 * kFlight) {
    Elements<T, kUnit> w[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (first + 32 * f < units) w[f] = *reinterpret_cast<const Elements<T, kUnit>*>(weight + (first + 32 * f) * kUnit);
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      if (first + 32 * f >= units) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        float v[kUnit];
        load_floats<kUnit>(x + row * p.x_stride + (first + 32 * f) * kUnit, v);
#pragma unroll
        for (int i = 0; i < kUnit; ++i) sum[row] = fmaf(to_float(w[f].x[i]), v[i], sum[row]);
      }
    }
  }
  const float bias = p.bias != nullptr ? to_float(static_cast<const T*>(p.bias)[out]) : 0.0F;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum[row] += __shfl_xor_sync(~0U, sum[row], distance);
    if (lane == 0) {
      Y* y = static_cast<Y*>(p.y) + row * p.y_stride + out;
      *y = from_float<Y>(sum[row] + bias + (p.accumulate ? to_float(*y) : 0.0F));
    }
  }
}

template <typename T, typename Y>
auto* choose_rows(int64_t rows) {
  return rows == 1 ? few_rows<T, Y, 1> : rows == 2 ? few_rows<T, Y, 2> : rows == 3 ? few_rows<T, Y, 3> : few_rows<T, Y, 4>;
}

}  // namespace

bool linear_supports(const Linear& p) {
  const int64_t unit = 16 / dtype_size(p.dtype);
  return p.rows <= 4 && p.in % unit == 0 && p.x_stride % unit == 0 && p.weight_stride % unit == 0 && aligned16(p.x) && aligned16(p.weight);
}

Status linear(const Linear& p, Stream stream) {
  if (p.rows == 0 || p.out == 0) return {};
  if (!linear_supports(p)) return {"linear: more than 4 rows, or rows that are no multiples of 16 bytes"};
  const bool bf = p.dtype == DType::bf16, y_bf = p.y_dtype == DType::bf16;
  auto* kernel = bf ? (y_bf ? choose_rows<bf16, bf16>(p.rows) : choose_rows<bf16, float>(p.rows))
                    : (y_bf ? choose_rows<float, bf16>(p.rows) : choose_rows<float, float>(p.rows));
  kernel<<<static_cast<unsigned>(ceil_div(p.out, kWarps)), 32 * kWarps, 0, stream_of(stream)>>>(p);
  return launched();
}

}  // namespace based::kernels::cuda
