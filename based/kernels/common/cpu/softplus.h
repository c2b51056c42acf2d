// softplus(x) = log(1 + e^x), for *.simd.cpp files.
#pragma once
#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {

// log(1 + t) for 0 <= t <= 1, as 2·atanh(z) with z = t / (2 + t) <= 1/3. The terms of the series after z^17 are below half a unit in the
// last place.
BASED_INLINE Vec log_of_one_plus(Vec t) {
  const Vec z = t / (2.0f + t), square = z * z;
  Vec sum = broadcast(1.0f / 17);
  for (int power = 15; power > 0; power -= 2) sum = sum * square + 1.0f / static_cast<float>(power);
  return 2.0f * z * sum;
}

BASED_INLINE Vec softplus(Vec x) { return max(Vec{}, x) + log_of_one_plus(exp(min(x, -x))); }

}  // namespace based::kernels::cpu::BASED_ISA
