// Shared by the kernels of linear layers: unrolled loops over sums in registers, and the reduction of several sums at once.
#pragma once
#include <utility>

#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {

// Calls f(0) … f(N − 1) with compile-time constants, so that arrays indexed by them stay in registers.
template <int N, class F>
BASED_INLINE void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

// Returns the sums of R vectors in the first R lanes. Each sum uses the same tree as reduce_add().
#if defined(__AVX2__)
BASED_INLINE __m256 halves(Vec x) {
#if defined(__AVX512F__)
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
  return x;
#endif
}
BASED_INLINE __m128 reduce_four(Vec a, Vec b, Vec c, Vec d) {
  const __m256 h0 = halves(a), h1 = halves(b), h2 = halves(c), h3 = halves(d);
  const __m256 q01 = _mm256_add_ps(_mm256_permute2f128_ps(h0, h1, 0x20), _mm256_permute2f128_ps(h0, h1, 0x31));
  const __m256 q23 = _mm256_add_ps(_mm256_permute2f128_ps(h2, h3, 0x20), _mm256_permute2f128_ps(h2, h3, 0x31));
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(q01, q23, 0x44), _mm256_shuffle_ps(q01, q23, 0xee));  // 0 0 2 2 | 1 1 3 3
  const __m128 low = _mm256_castps256_ps128(pairs), high = _mm256_extractf128_ps(pairs, 1);
  const __m128 sum = _mm_add_ps(_mm_shuffle_ps(low, high, 0x88), _mm_shuffle_ps(low, high, 0xdd));  // 0 2 1 3
  return _mm_shuffle_ps(sum, sum, 0xd8);
}
#else
BASED_INLINE Vec reduce_four(Vec a, Vec b, Vec c, Vec d) { return Vec{reduce_add(a), reduce_add(b), reduce_add(c), reduce_add(d)}; }
#endif
template <int R>
BASED_INLINE Vec reduce(const Vec (&x)[R]) {
#if defined(__AVX512F__)
  if constexpr (R == 8)
    return _mm512_zextps256_ps512(
        _mm256_insertf128_ps(_mm256_castps128_ps256(reduce_four(x[0], x[1], x[2], x[3])), reduce_four(x[4], x[5], x[6], x[7]), 1));
  if constexpr (R == 4) return _mm512_zextps128_ps512(reduce_four(x[0], x[1], x[2], x[3]));
#elif defined(__AVX2__)
  if constexpr (R == 4) return _mm256_zextps128_ps256(reduce_four(x[0], x[1], x[2], x[3]));
#else
  if constexpr (R == 4) return reduce_four(x[0], x[1], x[2], x[3]);
#endif
  if constexpr (R == 1) return Vec{reduce_add(x[0])};
}

}  // namespace based::kernels::cpu::BASED_ISA
