#include <algorithm>
#include <bit>

#include "based/kernels/attention/cpu/rotary_simd.h"
#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// cos and sin of n angles: reduced by quarter turns in double, then the Taylor series on |r| <= pi/4, whose rest is below 1e-12.
void cos_sin(double position, const double* frequency, int64_t n, float* cosine, float* sine) {
  constexpr double two_over_pi = 0.63661977236758134308, half_pi_high = 1.57079632679489655800, half_pi_low = 6.12323399573676603587e-17;
  constexpr double round_to_whole = 6755399441055744.0;  // 1.5·2^52: adding it leaves the nearest whole number in the low bits
  for (int64_t i = 0; i < n; ++i) {
    const double angle = position * frequency[i], shifted = angle * two_over_pi + round_to_whole, turns = shifted - round_to_whole;
    const double r = (angle - turns * half_pi_high) - turns * half_pi_low, z = r * r;
    const double s = r * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800))))));
    const double c = 1 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600)))));
    const int64_t quarter = std::bit_cast<int64_t>(shifted);
    const double a = quarter & 1 ? s : c, b = quarter & 1 ? c : s;
    cosine[i] = static_cast<float>((quarter + 1) & 2 ? -a : a);
    sine[i] = static_cast<float>(quarter & 2 ? -b : b);
  }
}

template <class T>
void rotate_halves(const T* x, T* y, int64_t half, const float* cosine, const float* sine) {
  for_each_vector(half, [&](int64_t i, int n) {
    const Vec a = load_some(x + i, n), b = load_some(x + half + i, n), c = load_some(cosine + i, n), s = load_some(sine + i, n);
    store_some(y + i, a * c - b * s, n);
    store_some(y + half + i, a * s + b * c, n);
  });
}

template <class T>
void rotate_pairs(const T* x, T* y, int64_t half, const float* cosine, const float* sine) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
    y[2 * i] = from_float<T>(a * cosine[i] - b * sine[i]);
    y[2 * i + 1] = from_float<T>(a * sine[i] + b * cosine[i]);
  }
}

template <class T>
void rotate(const Rotary& p, const double* frequency, int64_t begin, int64_t end) {
  const int64_t half = p.dim / 2;
  alignas(64) float cosine[rotary_max_dim / 2], sine[rotary_max_dim / 2];
  for (int64_t token = begin; token < end; ++token) {
    const double position = static_cast<double>(p.position[token]);
    cos_sin(p.inverse ? -position : position, frequency, half, cosine, sine);
    for (int64_t head = 0; head < p.heads; ++head) {
      const T* x = static_cast<const T*>(p.x) + token * p.x_stride + head * p.head_dim;
      T* y = static_cast<T*>(p.y) + token * p.y_stride + head * p.head_dim;
      p.interleaved ? rotate_pairs(x, y, half, cosine, sine) : rotate_halves(x, y, half, cosine, sine);
      if (x != y) std::copy(x + p.dim, x + p.head_dim, y + p.dim);
    }
  }
}

}  // namespace

void rotary_tokens(const Rotary& p, const double* frequency, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? rotate<bf16>(p, frequency, begin, end) : rotate<float>(p, frequency, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
