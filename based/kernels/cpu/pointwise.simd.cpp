#include <algorithm>
#include <bit>

#include "based/kernels/cpu/pointwise_simd.h"
#include "based/kernels/cpu/silu.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// body(first, lanes in use) for every vector of a row.
template <class Body>
BASED_INLINE void over_vectors(int64_t width, Body&& body) {
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) body(i, lanes);
  if (i < width) body(i, static_cast<int>(width - i));
}

template <class X, class T>
void rms_norm(const RmsNorm& p, int64_t row) {
  const X* x = p.x ? static_cast<const X*>(p.x) + row * p.width : nullptr;
  const T* add = p.add ? static_cast<const T*>(p.add) + row * p.width : nullptr;
  const T* deferred = p.deferred ? static_cast<const T*>(p.deferred) + row * p.width : nullptr;
  const T* weight = static_cast<const T*>(p.weight);
  X* kept = p.sum ? static_cast<X*>(p.sum) + row * p.width : nullptr;
  const T* gate = p.gate ? static_cast<const T*>(p.gate) + row * p.width : nullptr;
  T* y = static_cast<T*>(p.y) + row * p.width;
  Vec squares{};
  const auto summed = [&](int64_t i, int n) {
    Vec s = x ? load_some(x + i, n) : Vec{};
    if (deferred) s += load_some(deferred + i, n);
    if (add) s += load_some(add + i, n);
    return s;
  };
  over_vectors(p.width, [&](int64_t i, int n) {
    Vec s = summed(i, n);
    if (kept) {
      store_some(kept + i, s, n);
      s = load_some(kept + i, n);  // as it was rounded
    }
    squares = fma(s, s, squares);
  });
  const float inverse = 1 / __builtin_sqrtf(reduce_add(squares) / static_cast<float>(p.width) + p.eps);
  if (p.inverse_rms) p.inverse_rms[row] = inverse;
  over_vectors(p.width, [&](int64_t i, int n) {
    const Vec s = kept ? load_some(kept + i, n) : summed(i, n);
    Vec normed = s * inverse * load_some(weight + i, n);
    if (gate) {
      const Vec g = load_some(gate + i, n);
      normed *= g * sigmoid(g);
    }
    store_some(y + i, normed, n);
  });
}

// With g = grad_y ⊙ weight and r = inverse_rms: grad_x = r·(g − x·r²·mean(g ⊙ x)), grad_weight = Σ grad_y ⊙ x·r.
template <class X, class T>
void rms_norm_backward(const RmsNormBackward& b, int64_t row, float* grad_weight) {
  const RmsNorm& p = b.forward;
  const X* x = static_cast<const X*>(p.x) + row * p.width;
  const T *weight = static_cast<const T*>(p.weight), *grad_y = static_cast<const T*>(b.grad_y) + row * p.width;
  X* grad_x = b.grad_x ? static_cast<X*>(b.grad_x) + row * p.width : nullptr;
  const T* grad_sum = b.grad_sum ? static_cast<const T*>(b.grad_sum) + row * p.width : nullptr;
  T* grad_add = b.grad_add ? static_cast<T*>(b.grad_add) + row * p.width : nullptr;
  const float r = p.inverse_rms[row];
  Vec dots{};
  over_vectors(p.width, [&](int64_t i, int n) {
    const Vec g = load_some(grad_y + i, n), s = load_some(x + i, n);
    dots = fma(g * load_some(weight + i, n), s, dots);
    store_some(grad_weight + i, fma(g, s * r, load_some(grad_weight + i, n)), n);
  });
  const float mean = reduce_add(dots) / static_cast<float>(p.width) * r * r;
  over_vectors(p.width, [&](int64_t i, int n) {
    const Vec g = load_some(grad_y + i, n) * load_some(weight + i, n);
    Vec grad = (g - load_some(x + i, n) * mean) * r;
    if (grad_sum) {
      asm("" : "+m"(grad));  // rounded first: the same bits as the two gradients added by themselves
      grad = grad + load_some(grad_sum + i, n);
    }
    if (grad_x) store_some(grad_x + i, grad, n);
    if (grad_add) store_some(grad_add + i, grad, n);
  });
}

template <class T>
void swiglu(const Swiglu& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *value = static_cast<const T*>(p.h) + row * 2 * p.width, *gate = value + p.width;
    T* y = static_cast<T*>(p.y) + row * p.width;
    over_vectors(p.width, [&](int64_t i, int n) {
      const Vec g = load_some(gate + i, n);
      store_some(y + i, load_some(value + i, n) * (g * sigmoid(g)), n);
    });
  }
}

template <class T>
void swiglu_backward(const SwigluBackward& b, int64_t begin, int64_t end) {
  const int64_t width = b.forward.width;
  for (int64_t row = begin; row < end; ++row) {
    const T *value = static_cast<const T*>(b.forward.h) + row * 2 * width, *gate = value + width;
    const T* grad_y = static_cast<const T*>(b.grad_y) + row * width;
    T *grad_value = static_cast<T*>(b.grad_h) + row * 2 * width, *grad_gate = grad_value + width;
    over_vectors(width, [&](int64_t i, int n) {
      const Vec v = load_some(value + i, n), g = load_some(gate + i, n), grad = load_some(grad_y + i, n), s = sigmoid(g);
      store_some(grad_value + i, grad * (g * s), n);
      store_some(grad_gate + i, grad * v * silu_slope(g, s), n);
    });
  }
}

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
  over_vectors(half, [&](int64_t i, int n) {
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

void rms_norm_rows(const RmsNorm& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    if (p.x_dtype == DType::bf16)
      p.dtype == DType::bf16 ? rms_norm<bf16, bf16>(p, row) : rms_norm<bf16, float>(p, row);
    else
      p.dtype == DType::bf16 ? rms_norm<float, bf16>(p, row) : rms_norm<float, float>(p, row);
}

void rms_norm_backward_rows(const RmsNormBackward& b, int64_t begin, int64_t end, float* grad_weight) {
  const RmsNorm& p = b.forward;
  std::fill_n(grad_weight, p.width, 0.0f);
  for (int64_t row = begin; row < end; ++row)
    if (p.x_dtype == DType::bf16)
      p.dtype == DType::bf16 ? rms_norm_backward<bf16, bf16>(b, row, grad_weight) : rms_norm_backward<bf16, float>(b, row, grad_weight);
    else
      p.dtype == DType::bf16 ? rms_norm_backward<float, bf16>(b, row, grad_weight) : rms_norm_backward<float, float>(b, row, grad_weight);
}

void swiglu_rows(const Swiglu& p, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? swiglu<bf16>(p, begin, end) : swiglu<float>(p, begin, end);
}

void swiglu_backward_rows(const SwigluBackward& b, int64_t begin, int64_t end) {
  b.forward.dtype == DType::bf16 ? swiglu_backward<bf16>(b, begin, end) : swiglu_backward<float>(b, begin, end);
}

void rotary_tokens(const Rotary& p, const double* frequency, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? rotate<bf16>(p, frequency, begin, end) : rotate<float>(p, frequency, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
