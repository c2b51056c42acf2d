// SwiGLU: each element is read once and written once.
#include "based/kernels/pointwise/swiglu.h"

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kUnit = 8;  // elements a thread handles at a time

template <typename T, int kCount>
__global__ void swiglu_units(const __grid_constant__ Swiglu p) {
  overlap_kernels();
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
  overlap_kernels();
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

template <typename Kernel, typename Params>
Status launch_units(Kernel* kernel, const Params& p, int64_t units, Queue queue) {
  if (units == 0) return {};
  return launch_overlapped(kernel, {static_cast<unsigned>(ceil_div(units, 256)), 256}, queue, p);
}

}  // namespace

Status swiglu_forward(const Swiglu& p, Queue queue) {
  const bool bf = p.dtype == DType::bf16, vector = p.width % kUnit == 0 && aligned16(p.h) && aligned16(p.y);
  auto* kernel =
      bf ? (vector ? swiglu_units<bf16, kUnit> : swiglu_units<bf16, 1>) : (vector ? swiglu_units<float, kUnit> : swiglu_units<float, 1>);
  return launch_units(kernel, p, p.rows * p.width / (vector ? kUnit : 1), queue);
}

Status swiglu_backward(const SwigluBackward& p, Queue queue) {
  const Swiglu& f = p.forward;
  const bool bf = f.dtype == DType::bf16, vector = f.width % kUnit == 0 && aligned16(f.h) && aligned16(p.grad_y) && aligned16(p.grad_h);
  auto* kernel = bf ? (vector ? swiglu_units_backward<bf16, kUnit> : swiglu_units_backward<bf16, 1>)
                    : (vector ? swiglu_units_backward<float, kUnit> : swiglu_units_backward<float, 1>);
  return launch_units(kernel, p, f.rows * f.width / (vector ? kUnit : 1), queue);
}

namespace {
const DefineLaunchers<SwigluLaunchers> kLaunchers(Device::cuda, {.forward = swiglu_forward, .backward = swiglu_backward});
}

}  // namespace based::kernels::cuda
