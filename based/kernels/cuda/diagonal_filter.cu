// A block has a group. With λ = log a and w = 2 C b the filter is Re Σ w exp(λ t). For a holomorphic z, G_z is what makes a small change of
// z change the loss by Re(G_z dz): G_w = Σ_t g_t exp(λ t), G_λ = w Σ_t g_t t exp(λ t), and the others follow by the chain rule.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/diagonal_filter.h"

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
__device__ __forceinline__ Complex log_of(Complex a) { return {0.5 * log(a.re * a.re + a.im * a.im), atan2(a.im, a.re)}; }
__device__ __forceinline__ Complex exp_of(Complex a) {
  double sine, cosine;
  sincos(a.im, &sine, &cosine);
  const double size = exp(a.re);
  return {size * cosine, size * sine};
}

struct Pole {
  Complex A, b, c, up, down, log_a, w;  // B, C; 1 / (1 + h), 1 / (1 − h); λ
  double dt = 0;

  __device__ __forceinline__ Pole(const DiagonalFilter& p, int64_t group, int64_t pole) {
    const int64_t at = group * p.poles + pole;
    dt = exp(static_cast<double>(p.log_dt[group]));
    A = {-exp(static_cast<double>(p.log_decay[at])), p.frequency[at]};
    b = {p.B[2 * at], p.B[2 * at + 1]}, c = {p.C[2 * at], p.C[2 * at + 1]};
    const Complex h = dt / 2 * A, above{1 + h.re, h.im}, below{1 - h.re, -h.im};
    up = inverse(above), down = inverse(below);
    log_a = log_of(above * down);
    w = 2 * dt * (c * b * down);
  }
};

__global__ void __launch_bounds__(kThreads) diagonal_filter_kernel(const DiagonalFilter p) {
  __shared__ Complex log_a[kDiagonalFilterPoles], w[kDiagonalFilterPoles];
  const int64_t group = blockIdx.x;
  for (int64_t pole = threadIdx.x; pole < p.poles; pole += kThreads) {
    const Pole of(p, group, pole);
    log_a[pole] = of.log_a, w[pole] = of.w;
  }
  __syncthreads();
  for (int64_t t = threadIdx.x; t < p.taps; t += kThreads) {
    double sum = t == 0 ? p.D[group] : 0;
    for (int64_t pole = 0; pole < p.poles; ++pole) sum += (w[pole] * exp_of(static_cast<double>(t) * log_a[pole])).re;
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

// The gradients of a pole's parameters; returns its part of that of dt.
__device__ __forceinline__ double write_gradients(const DiagonalFilterBackward& b, int64_t at, const Pole& of, Complex by_w,
                                                  Complex by_log_a) {
  const Complex by_h = 2 * (by_log_a * of.up * of.down) + by_w * of.w * of.down, by_A = of.dt / 2 * by_h;
  const Complex scaled = 2 * of.dt * (by_w * of.down), by_b = scaled * of.c, by_c = scaled * of.b;
  b.grad_log_decay[at] = static_cast<float>(by_A.re * of.A.re);
  b.grad_frequency[at] = static_cast<float>(-by_A.im);
  b.grad_B[2 * at] = static_cast<float>(by_b.re), b.grad_B[2 * at + 1] = static_cast<float>(-by_b.im);
  b.grad_C[2 * at] = static_cast<float>(by_c.re), b.grad_C[2 * at + 1] = static_cast<float>(-by_c.im);
  return (by_h * of.A).re / 2 + (by_w * of.w).re / of.dt;
}

__global__ void __launch_bounds__(kThreads) diagonal_filter_backward_kernel(const DiagonalFilterBackward b) {
  __shared__ double by_dt[kDiagonalFilterPoles];
  const DiagonalFilter& p = b.forward;
  const int64_t group = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t pole = warp; pole < p.poles; pole += kWarps) {
    const Pole of(p, group, pole);
    Complex sum{}, times_t{};
    for (int64_t t = lane; t < p.taps; t += 32) {
      const auto time = static_cast<double>(t);
      const Complex term = b.grad_filter[group * p.taps + t] * exp_of(time * of.log_a);
      sum = sum + term, times_t = times_t + time * term;
    }
    sum = warp_sum(sum), times_t = warp_sum(times_t);
    if (lane == 0) by_dt[pole] = write_gradients(b, group * p.poles + pole, of, sum, of.w * times_t);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int64_t pole = 0; pole < p.poles; ++pole) sum += by_dt[pole];
  b.grad_log_dt[group] = static_cast<float>(sum * exp(static_cast<double>(p.log_dt[group])));
  b.grad_D[group] = p.taps > 0 ? b.grad_filter[group * p.taps] : 0;
}

Status check(const DiagonalFilter& p) {
  return p.poles >= 1 && p.poles <= kDiagonalFilterPoles ? Status{} : Status{"diagonal_filter: poles must be 1..256"};
}

}  // namespace
}  // namespace detail

Status diagonal_filter_forward(const DiagonalFilter& p, Stream stream) {
  if (const Status status = detail::check(p); !status.ok() || p.groups == 0) return status;
  detail::diagonal_filter_kernel<<<static_cast<unsigned>(p.groups), detail::kThreads, 0, detail::stream_of(stream)>>>(p);
  return detail::launched();
}

Status diagonal_filter_backward(const DiagonalFilterBackward& b, Stream stream) {
  if (const Status status = detail::check(b.forward); !status.ok() || b.forward.groups == 0) return status;
  detail::diagonal_filter_backward_kernel<<<static_cast<unsigned>(b.forward.groups), detail::kThreads, 0, detail::stream_of(stream)>>>(b);
  return detail::launched();
}

}  // namespace based::kernels::cuda
