#include <algorithm>

#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/norm/cpu/rms_norm_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

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
  for_each_vector(p.width, [&](int64_t i, int n) {
    Vec s = summed(i, n);
    if (kept) {
      store_some(kept + i, s, n);
      s = load_some(kept + i, n);  // as it was rounded
    }
    squares = fma(s, s, squares);
  });
  const float inverse = 1 / __builtin_sqrtf(reduce_add(squares) / static_cast<float>(p.width) + p.eps);
  if (p.inverse_rms) p.inverse_rms[row] = inverse;
  for_each_vector(p.width, [&](int64_t i, int n) {
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
  for_each_vector(p.width, [&](int64_t i, int n) {
    const Vec g = load_some(grad_y + i, n), s = load_some(x + i, n);
    dots = fma(g * load_some(weight + i, n), s, dots);
    store_some(grad_weight + i, fma(g, s * r, load_some(grad_weight + i, n)), n);
  });
  const float mean = reduce_add(dots) / static_cast<float>(p.width) * r * r;
  for_each_vector(p.width, [&](int64_t i, int n) {
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

}  // namespace based::kernels::cpu::BASED_ISA
