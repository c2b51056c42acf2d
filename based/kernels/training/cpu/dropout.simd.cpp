#include "based/kernels/common/cpu/vec.h"
#include "based/kernels/training/cpu/dropout_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class T>
void drop(const DropElements& p, uint64_t key, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  for (int64_t i = begin; i < end; ++i)
    y[i] = from_float<T>(is_dropped(key, static_cast<uint64_t>(i), p.threshold) ? 0.0f : to_float(x[i]) * p.scale);
}

}  // namespace

void drop_elements(const DropElements& p, uint64_t key, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? drop<bf16>(p, key, begin, end) : drop<float>(p, key, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
