#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/common/cpu/softplus.h"
#include "based/kernels/pointwise/cpu/activation_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

Vec load_factors(const Activate& p, const void* x, int64_t i, int n) {
  return p.factor_dtype == DType::bf16 ? load_some(static_cast<const bf16*>(x) + i, n) : load_some(static_cast<const float*>(x) + i, n);
}

template <class X, class Y, class Function>
void over_rows(const Activate& p, int64_t begin, int64_t end, Function&& function) {
  for (int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(p.x) + row * p.x_stride;
    Y* y = static_cast<Y*>(p.y) + row * p.width;
    for (int64_t i = 0; i < p.width; i += lanes) {
      const int n = p.width - i < lanes ? static_cast<int>(p.width - i) : lanes;
      Vec value = load_some(x + i, n);
      if (p.bias) value += load_factors(p, p.bias, i, n);
      value = p.scale * function(value);
      if (p.log_rate) value *= exp(load_factors(p, p.log_rate, i, n));
      store_some(y + i, value, n);
    }
  }
}

template <class X, class Y>
void activate(const Activate& p, int64_t begin, int64_t end) {
  switch (p.function) {
    case Activation::silu: return over_rows<X, Y>(p, begin, end, [](Vec x) { return x * sigmoid(x); });
    case Activation::sigmoid: return over_rows<X, Y>(p, begin, end, [](Vec x) { return sigmoid(x); });
    case Activation::softplus: return over_rows<X, Y>(p, begin, end, [](Vec x) { return softplus(x); });
    case Activation::exp: return over_rows<X, Y>(p, begin, end, [](Vec x) { return exp(x); });
    case Activation::elu_plus_one: return over_rows<X, Y>(p, begin, end, [](Vec x) { return x > 0 ? x + 1 : exp(x); });
    case Activation::log_sigmoid: return over_rows<X, Y>(p, begin, end, [](Vec x) { return -softplus(-x); });
  }
}

}  // namespace

void activate_rows(const Activate& p, int64_t begin, int64_t end) {
  if (p.dtype == DType::bf16) return p.y_dtype == DType::bf16 ? activate<bf16, bf16>(p, begin, end) : activate<bf16, float>(p, begin, end);
  p.y_dtype == DType::bf16 ? activate<float, bf16>(p, begin, end) : activate<float, float>(p, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
