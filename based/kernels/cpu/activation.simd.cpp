#include "based/kernels/cpu/activation_simd.h"
#include "based/kernels/cpu/silu.h"
#include "based/kernels/cpu/softplus.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class T, class Function>
void over_rows(const Activate& p, int64_t begin, int64_t end, Function&& function) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.width;
    T* y = static_cast<T*>(p.y) + row * p.width;
    for (int64_t i = 0; i < p.width; i += lanes) {
      const int n = p.width - i < lanes ? static_cast<int>(p.width - i) : lanes;
      store_some(y + i, function(load_some(x + i, n)), n);
    }
  }
}

template <class T>
void activate(const Activate& p, int64_t begin, int64_t end) {
  switch (p.function) {
    case Activation::silu: return over_rows<T>(p, begin, end, [](Vec x) { return x * sigmoid(x); });
    case Activation::sigmoid: return over_rows<T>(p, begin, end, [](Vec x) { return sigmoid(x); });
    case Activation::softplus: return over_rows<T>(p, begin, end, [](Vec x) { return softplus(x); });
    case Activation::exp: return over_rows<T>(p, begin, end, [](Vec x) { return exp(x); });
  }
}

}  // namespace

void activate_rows(const Activate& p, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? activate<bf16>(p, begin, end) : activate<float>(p, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
