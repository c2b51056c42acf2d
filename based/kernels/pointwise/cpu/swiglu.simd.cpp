#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/pointwise/cpu/swiglu_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class T>
void swiglu(const Swiglu& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *value = static_cast<const T*>(p.h) + row * 2 * p.width, *gate = value + p.width;
    T* y = static_cast<T*>(p.y) + row * p.width;
    for_each_vector(p.width, [&](int64_t i, int n) {
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
    for_each_vector(width, [&](int64_t i, int n) {
      const Vec v = load_some(value + i, n), g = load_some(gate + i, n), grad = load_some(grad_y + i, n), s = sigmoid(g);
      store_some(grad_value + i, grad * (g * s), n);
      store_some(grad_gate + i, grad * v * silu_slope(g, s), n);
    });
  }
}

}  // namespace

void swiglu_rows(const Swiglu& p, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? swiglu<bf16>(p, begin, end) : swiglu<float>(p, begin, end);
}

void swiglu_backward_rows(const SwigluBackward& b, int64_t begin, int64_t end) {
  b.forward.dtype == DType::bf16 ? swiglu_backward<bf16>(b, begin, end) : swiglu_backward<float>(b, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
