// SiLU(x) = x·sigmoid(x) and its derivative, for *.simd.cpp files.
#pragma once
#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {

// 1 / (1 + e^-x); exp saturates to 0 and infinity, so every x gives a number in [0, 1].
BASED_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// d/dx x·sigmoid(x), given s = sigmoid(x).
BASED_INLINE Vec silu_slope(Vec x, Vec s) { return s * (1.0f + x * (1.0f - s)); }

// Loads or stores the first n lanes, without a mask where n == lanes.
template <class T>
BASED_INLINE Vec load_some(const T* p, int n) {
  return n == lanes ? load(p) : load(p, n);
}
template <class T>
BASED_INLINE void store_some(T* p, Vec x, int n) {
  n == lanes ? store(p, x) : store(p, x, n);
}

}  // namespace based::kernels::cpu::BASED_ISA
