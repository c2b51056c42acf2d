// A vector of fp32 lanes for the instruction set that a *.simd.cpp file is compiled for. Vec is a compiler vector type with built-in + - *
// / and comparisons; a * b + c becomes one fused multiply-add where the instruction set has it. Everything here is in namespace
// cpu::BASED_ISA and inlined: of a function with the same name in several instruction sets the linker would keep only one.
#pragma once
#ifndef BASED_ISA
#error "vec.h is for *.simd.cpp files, which are compiled once an instruction set"
#endif
#include <cstdint>

#if defined(__AVX2__)
// GCC's headers intentionally leave the unused operand of masked instructions uninitialised, and GCC 12 warns about it wherever they are
// inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define BASED_INLINE inline __attribute__((always_inline))

namespace based::kernels::cpu {

// A bfloat16 in memory: the upper half of an fp32.
struct bf16 {
  uint16_t bits;
};

namespace BASED_ISA {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float Vec __attribute__((vector_size(lanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(lanes * 4)));
typedef uint32_t UintVec __attribute__((vector_size(lanes * 4)));
typedef float UnalignedVec __attribute__((vector_size(lanes * 4), aligned(4), may_alias));

BASED_INLINE Vec zero() { return Vec{}; }
BASED_INLINE Vec broadcast(float x) { return x - Vec{}; }  // x - 0 is x for every x, -0 too

BASED_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
BASED_INLINE void store(float* p, Vec x) { *reinterpret_cast<UnalignedVec*>(p) = x; }

// a * b + c, rounded once where the instruction set has a fused multiply-add. It is explicit because compilers differ in the sums that they
// fuse.
BASED_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// Where an operand is NaN the result is b, so pass a value that may be NaN as b to propagate it.
BASED_INLINE Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  for (int i = 0; i < lanes; ++i) b[i] = a[i] > b[i] ? a[i] : b[i];
  return b;
#endif
}

BASED_INLINE Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  for (int i = 0; i < lanes; ++i) b[i] = a[i] < b[i] ? a[i] : b[i];
  return b;
#endif
}

BASED_INLINE Vec sqrt(Vec x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  for (int i = 0; i < lanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Lane i of the result is a[i] where mask[i] is all ones, and b[i] where it is 0. Comparisons of two Vec return such masks.
BASED_INLINE Vec select(IntVec mask, Vec a, Vec b) {
  return reinterpret_cast<Vec>((mask & reinterpret_cast<IntVec>(a)) | (~mask & reinterpret_cast<IntVec>(b)));
}

// The sum of the lanes as a fixed tree: one half is added to the other half, repeatedly.
BASED_INLINE float reduce_add(Vec x) {
#if defined(__AVX512F__)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#elif defined(__AVX2__)
  const __m256 half = x;
#endif
#if defined(__AVX2__)
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

BASED_INLINE float reduce_max(Vec x) {
  float y = x[0];
  for (int i = 1; i < lanes; ++i) y = x[i] > y ? x[i] : y;
  return y;
}

// Loads the first n lanes, 0 <= n <= lanes; the others are 0 and their memory is not accessed.
BASED_INLINE Vec load(const float* p, int n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#elif defined(__AVX2__)
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_maskload_ps(p, mask);
#else
  Vec x{};
  for (int i = 0; i < n; ++i) x[i] = p[i];
  return x;
#endif
}

BASED_INLINE void store(float* p, Vec x, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
#elif defined(__AVX2__)
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_maskstore_ps(p, mask, x);
#else
  for (int i = 0; i < n; ++i) p[i] = x[i];
#endif
}

// Transposes a square: swaps lane j of x[i] and lane i of x[j].
BASED_INLINE void transpose(Vec (&x)[lanes]) {
#pragma GCC unroll 4
  for (int step = 1; step < lanes; step *= 2) {  // each step interleaves the first half of the rows with the second
    Vec y[lanes];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) {
      const Vec a = x[i], b = x[i + lanes / 2];
#if defined(__AVX512F__)
      y[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      y[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
      y[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      y[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
      y[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      y[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) x[i] = y[i];
  }
}

BASED_INLINE float to_float(float x) { return x; }
BASED_INLINE float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

template <class T>
BASED_INLINE T from_float(float x);
template <>
BASED_INLINE float from_float<float>(float x) {
  return x;
}
// Rounds to nearest, ties to even; NaN stays NaN.
template <>
BASED_INLINE bf16 from_float<bf16>(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// bf16 in memory, fp32 in registers. Stores round to nearest, ties to even.
BASED_INLINE Vec load(const bf16* p) {
#if defined(__AVX512F__)
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#elif defined(__AVX2__)
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
#else
  Vec x{};
  for (int i = 0; i < lanes; ++i) x[i] = to_float(p[i]);
  return x;
#endif
}

BASED_INLINE Vec load(const bf16* p, int n) {
#if defined(__AVX512F__)
  const __m256i bits = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#else
  float x[lanes] = {};
  for (int i = 0; i < n; ++i) x[i] = to_float(p[i]);
  return load(x);
#endif
}

#if defined(__AVX512F__)
BASED_INLINE __m256i bf16_bits(Vec x) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));  // treats fp32 denormals as 0
#else
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(rounded);
#endif
}
#endif

BASED_INLINE void store(bf16* p, Vec x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_bits(x));
#elif defined(__AVX2__)
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)), all = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
#else
  for (int i = 0; i < lanes; ++i) p[i] = from_float<bf16>(x[i]);
#endif
}

BASED_INLINE void store(bf16* p, Vec x, int n) {
#if defined(__AVX512F__)
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), bf16_bits(x));
#else
  for (int i = 0; i < n; ++i) p[i] = from_float<bf16>(x[i]);
#endif
}

// e^x to about 2 units in the last place; 0 below e^-87, infinity above e^88.7, NaN for NaN.
BASED_INLINE Vec exp(Vec x) {
  const Vec low = broadcast(-87.3f), high = broadcast(88.8f);
  const IntVec tiny = x < low;
  const Vec clamped = min(high, max(low, x));
  // 2^n · e^r with |r| <= ln(2)/2; adding 1.5·2^23 rounds to an integer and leaves n in the low bits.
  const Vec shifted = clamped * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const Vec r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec p = broadcast(1.98756915e-4f);
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657959e-2f;
  p = p * r + 1.66666654e-1f;
  p = p * r + 5.0e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, since n may be 128.
  const IntVec whole = reinterpret_cast<IntVec>(shifted) - 0x4b400000, half = whole >> 1;
  const Vec a = reinterpret_cast<Vec>((half + 127) << 23), b = reinterpret_cast<Vec>((whole - half + 127) << 23);
  return select(tiny, Vec{}, p * a * b);
}

// body(first, count) for each vector of a row: `lanes` numbers, fewer in the last one.
template <class Body>
BASED_INLINE void for_each_vector(int64_t width, Body&& body) {
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) body(i, lanes);
  if (i < width) body(i, static_cast<int>(width - i));
}

}  // namespace BASED_ISA
}  // namespace based::kernels::cpu
