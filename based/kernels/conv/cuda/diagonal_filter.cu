// Each block handles one group. With λ = log a and w = 2 C b the filter is Re Σ w exp(λ t). For a complex variable z, define G_z so that a
// small change dz changes the loss by Re(G_z dz). Then G_w = Σ_t g_t exp(λ t), G_λ = w Σ_t g_t t exp(λ t), and the others follow from the
// chain rule.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/conv/diagonal_filter.h"

namespace based::kernels::cuda {
namespace detail {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Complex {
  double re, im;
};
__device__ __forceinline__ Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
__device__ __forceinline__ Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ Complex inverse(Complex a) {
  const double scale = 1 / (a.re * a.re + a.im * a.im);
  return {scale * a.re, -scale * a.im};
}
__device__ __forceinline__ Complex complex_log(Complex a) { return {0.5 * log(a.re * a.re + a.im * a.im), atan2(a.im, a.re)}; }
__device__ __forceinline__ Complex complex_exp(Complex a) {
  double sine, cosine;
  sincos(a.im, &sine, &cosine);
  const double size = exp(a.re);
  return {size * cosine, size * sine};
}

struct Pole {
  Complex A, b, c, inverse_plus, inverse_minus, log_a, w;  // b, c: B, C; inverses of 1 + h and 1 − h; log_a: λ
  double dt = 0;

  __device__ __forceinline__ Pole(const DiagonalFilter& p, int64_t group, int64_t pole) {
    const int64_t index = group * p.poles + pole;
    dt = exp(static_cast<double>(p.log_dt[group]));
    A = {-exp(static_cast<double>(p.log_decay[index])), p.frequency[index]};
    b = {p.B[2 * index], p.B[2 * index + 1]}, c = {p.C[2 * index], p.C[2 * index + 1]};
    const Complex h = dt / 2 * A, plus{1 + h.re, h.im}, minus{1 - h.re, -h.im};
    inverse_plus = inverse(plus), inverse_minus = inverse(minus);
    log_a = complex_log(plus * inverse_minus);
    w = 2 * dt * (c * b * inverse_minus);
  }
};

__global__ void __launch_bounds__(kThreads) diagonal_filter_kernel(const DiagonalFilter p) {
  __shared__ Complex log_a[kDiagonalFilterPoles], w[kDiagonalFilterPoles];
  const int64_t group = blockIdx.x;
  for (int64_t pole = threadIdx.x; pole < p.poles; pole += kThreads) {
    const Pole constants(p, group, pole);
    log_a[pole] = constants.log_a, w[pole] = constants.w;
  }
  __syncthreads();
  for (int64_t t = threadIdx.x; t < p.taps; t += kThreads) {
    double sum = t == 0 ? p.D[group] : 0;
    for (int64_t pole = 0; pole < p.poles; ++pole) sum += (w[pole] * complex_exp(static_cast<double>(t) * log_a[pole])).re;
    p.filter[group * p.taps + t] = static_cast<float>(sum);
  }
}

__device__ __forceinline__ Complex warp_sum(Complex x) {
  for (int lane = 16; lane > 0; lane /= 2) {
    x.re += __shfl_xor_sync(0xffffffffU, x.re, lane);
    x.im += __shfl_xor_sync(0xffffffffU, x.im, lane);
  }
  return x;
}

// Stores the gradients of a pole's parameters; returns the pole's contribution to the gradient of dt.
__device__ __forceinline__ double write_gradients(const DiagonalFilterBackward& b, int64_t index, const Pole& pole, Complex grad_w,
                                                  Complex grad_log_a) {
  const Complex grad_h = 2 * (grad_log_a * pole.inverse_plus * pole.inverse_minus) + grad_w * pole.w * pole.inverse_minus;
  const Complex grad_A = pole.dt / 2 * grad_h;
  const Complex scaled = 2 * pole.dt * (grad_w * pole.inverse_minus), grad_b = scaled * pole.c, grad_c = scaled * pole.b;
  b.grad_log_decay[index] = static_cast<float>(grad_A.re * pole.A.re);
  b.grad_frequency[index] = static_cast<float>(-grad_A.im);
  b.grad_B[2 * index] = static_cast<float>(grad_b.re), b.grad_B[2 * index + 1] = static_cast<float>(-grad_b.im);
  b.grad_C[2 * index] = static_cast<float>(grad_c.re), b.grad_C[2 * index + 1] = static_cast<float>(-grad_c.im);
  return (grad_h * pole.A).re / 2 + (grad_w * pole.w).re / pole.dt;
}

__global__ void __launch_bounds__(kThreads) diagonal_filter_backward_kernel(const DiagonalFilterBackward b) {
  __shared__ double grad_dt[kDiagonalFilterPoles];
  const DiagonalFilter& p = b.forward;
  const int64_t group = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t pole = warp; pole < p.poles; pole += kWarps) {
    const Pole constants(p, group, pole);
    Complex sum{}, weighted_sum{};
    for (int64_t t = lane; t < p.taps; t += 32) {
      const auto time = static_cast<double>(t);
      const Complex term = b.grad_filter[group * p.taps + t] * complex_exp(time * constants.log_a);
      sum = sum + term, weighted_sum = weighted_sum + time * term;
    }
    sum = warp_sum(sum), weighted_sum = warp_sum(weighted_sum);
    if (lane == 0) grad_dt[pole] = write_gradients(b, group * p.poles + pole, constants, sum, constants.w * weighted_sum);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int64_t pole = 0; pole < p.poles; ++pole) sum += grad_dt[pole];
  b.grad_log_dt[group] = static_cast<float>(sum * exp(static_cast<double>(p.log_dt[group])));
  b.grad_D[group] = p.taps > 0 ? b.grad_filter[group * p.taps] : 0;
}

Status check(const DiagonalFilter& p) {
  return p.poles >= 1 && p.poles <= kDiagonalFilterPoles ? Status{} : Status{"diagonal_filter: poles must be 1..256"};
}

}  // namespace
}  // namespace detail

Status diagonal_filter_forward(const DiagonalFilter& p, Queue queue) {
  if (const Status status = detail::check(p); !status.ok() || p.groups == 0) return status;
  detail::diagonal_filter_kernel<<<static_cast<unsigned>(p.groups), detail::kThreads, 0, detail::stream_of(queue)>>>(p);
  return detail::launched();
}

Status diagonal_filter_backward(const DiagonalFilterBackward& b, Queue queue) {
  if (const Status status = detail::check(b.forward); !status.ok() || b.forward.groups == 0) return status;
  detail::diagonal_filter_backward_kernel<<<static_cast<unsigned>(b.forward.groups), detail::kThreads, 0, detail::stream_of(queue)>>>(b);
  return detail::launched();
}

namespace {
const DefineLaunchers<DiagonalFilterLaunchers> kLaunchers(Device::cuda,
                                                          {.forward = diagonal_filter_forward, .backward = diagonal_filter_backward});
}

}  // namespace based::kernels::cuda
