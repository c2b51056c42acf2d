// Elementwise functions; each element is read once and written once.
#include "based/kernels/pointwise/activation.h"

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/log_sigmoid.cuh"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float value_of(Activation function, float x) {
  switch (function) {
    case Activation::silu: return x * sigmoid(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::softplus: return softplus(x);
    case Activation::exp: return expf(x);
    case Activation::elu_plus_one: return x > 0 ? x + 1 : expf(x);
    default: return log_sigmoid(x);
  }
}

__device__ __forceinline__ float factor_at(const Activate& p, const void* factors, int64_t column) {
  return p.factor_dtype == DType::bf16 ? to_float(static_cast<const bf16*>(factors)[column]) : static_cast<const float*>(factors)[column];
}

template <typename X, typename Y, int kCount>
__global__ void __launch_bounds__(kThreads) activate_units(const __grid_constant__ Activate p) {
  overlap_kernels();
  const int64_t units = p.width / kCount, at = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (at >= p.rows * units) return;
  const int64_t row = at / units, column = at % units * kCount;
  float x[kCount];
  load_floats<kCount>(static_cast<const X*>(p.x) + row * p.x_stride + column, x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (p.bias != nullptr) x[i] += factor_at(p, p.bias, column + i);
    x[i] = p.scale * value_of(p.function, x[i]);
    if (p.log_rate != nullptr) x[i] *= expf(factor_at(p, p.log_rate, column + i));
  }
  store_floats<kCount>(static_cast<Y*>(p.y) + row * p.width + column, x);
}

template <typename X, typename Y>
Status launch_units(const Activate& p, Queue queue) {
  constexpr int kUnit = 8;
  const bool vector = p.width % kUnit == 0 && p.x_stride * static_cast<int64_t>(sizeof(X)) % 16 == 0 && aligned16(p.x) && aligned16(p.y);
  const int64_t units = p.rows * p.width / (vector ? kUnit : 1);
  return launch_overlapped(vector ? activate_units<X, Y, kUnit> : activate_units<X, Y, 1>,
                           {static_cast<unsigned>(ceil_div(units, kThreads)), kThreads}, queue, p);
}

}  // namespace

Status activate(const Activate& p, Queue queue) {
  if (p.rows < 0 || p.width < 0) return {"activate: sizes must not be negative"};
  if (p.rows == 0 || p.width == 0) return {};
  if (p.dtype == DType::bf16) return p.y_dtype == DType::bf16 ? launch_units<bf16, bf16>(p, queue) : launch_units<bf16, float>(p, queue);
  return p.y_dtype == DType::bf16 ? launch_units<float, bf16>(p, queue) : launch_units<float, float>(p, queue);
}

namespace {
const DefineLaunchers<ActivationLaunchers> kLaunchers(Device::cuda, {.activate = activate});
}

}  // namespace based::kernels::cuda
