// Dot products of blocks of R weight rows and C activation rows, in steps of Form::step weights. For any R and C, each output is one chain
// of vector additions from the first step to the last, and one reduction tree at the end. So the bits of a row do not depend on the batch.
#include <algorithm>
#include <cstring>

#include "based/kernels/linear/cpu/dot.h"
#include "based/kernels/linear/cpu/quantised_linear_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int group = static_cast<int>(kInt4Group);

// Streams of weight rows, and activation rows, whose sums fit in registers.
#if defined(__AVX512F__)
constexpr int one_row_streams = 8, few_streams = 4, most_rows = 4;
#else
constexpr int one_row_streams = 4, few_streams = 4, most_rows = 2;
#endif
static_assert(quantised_columns % one_row_streams == 0 && quantised_columns % few_streams == 0);

// `lanes` signed bytes as fp32.
BASED_INLINE Vec widened(const int8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  Vec x{};
  for (int i = 0; i < lanes; ++i) x[i] = static_cast<float>(p[i]);
  return x;
#endif
}

// A form of weights defines `step`, the number of weights of a step, `bytes`, their bytes, and the bytes of the scales of a step and of a
// row. Weights holds a step's weights in registers, multiply() adds a step's products to a sum, and factor() multiplies the row's sum.
// arrange() puts a step of activations into the order that the vectors of Weights have.

// The row's scale multiplies the sum.
struct Int8 {
  static constexpr int step = 4 * lanes < group ? group : 4 * lanes, bytes = step, parts = step / lanes;
  static constexpr int64_t step_scale_bytes = 0;
  static constexpr int64_t row_scale_bytes(int64_t /*in*/) { return sizeof(float); }
  struct Weights {
    Vec vectors[parts];
    BASED_INLINE Weights(const std::byte* w, const std::byte* /*scale*/) {
      unroll<parts>([&](auto v) __attribute__((always_inline)) { vectors[v] = widened(reinterpret_cast<const int8_t*>(w) + v * lanes); });
    }
  };
  static BASED_INLINE Vec multiply(const Weights& weights, const float* x, Vec sum) {
    unroll<parts>([&](auto v) __attribute__((always_inline)) { sum = fma(weights.vectors[v], load(x + v * lanes), sum); });
    return sum;
  }
  static BASED_INLINE float factor(const std::byte* scale) {
    float value = 0;
    std::memcpy(&value, scale, sizeof value);
    return value;
  }
  static void arrange(float* /*x*/) {}
};

#if defined(__AVX512F__)
// A step has four groups, whose bytes are 16 numbers of 32 bits. Vector v has nibble v of each number: vpermps looks its value up, reading
// only the low four bits. The lanes 4·g … 4·g + 3 of the sum of a step's products belong to group g, whose scale multiplies them.
struct Int4 {
  static constexpr int step = 4 * group, bytes = step / 2, parts = step / lanes;
  static constexpr int64_t step_scale_bytes = 4 * sizeof(bf16);
  static constexpr int64_t row_scale_bytes(int64_t in) { return in / group * static_cast<int64_t>(sizeof(bf16)); }
  struct Weights {
    Vec vectors[parts];
    Vec scales;
    BASED_INLINE Weights(const std::byte* w, const std::byte* scale) {
      const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
      const __m512i numbers = _mm512_loadu_si512(w);
      unroll<parts>([&](auto v) __attribute__((always_inline)) {
        vectors[v] = _mm512_permutexvar_ps(v == 0 ? numbers : _mm512_srli_epi32(numbers, 4 * v), values);
      });
      // Each lane's upper half becomes its group's bf16, and its lower half 0.
      int64_t four = 0;
      std::memcpy(&four, scale, sizeof four);
      const __m512i places =
          _mm512_set_epi32(0x07068080, 0x07068080, 0x07068080, 0x07068080, 0x05048080, 0x05048080, 0x05048080, 0x05048080, 0x03028080,
                           0x03028080, 0x03028080, 0x03028080, 0x01008080, 0x01008080, 0x01008080, 0x01008080);
      scales = _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_set1_epi64(four), places));
    }
  };
  static BASED_INLINE Vec multiply(const Weights& weights, const float* x, Vec sum) {
    Vec products = weights.vectors[0] * load(x);
    unroll<parts - 1>([&](auto v)
                          __attribute__((always_inline)) { products = fma(weights.vectors[v + 1], load(x + (v + 1) * lanes), products); });
    return fma(products, weights.scales, sum);
  }
  static BASED_INLINE float factor(const std::byte* /*scale*/) { return 1; }
  // Number k of group g has the weights 4·k … 4·k + 3 of the group in its even nibbles, and 16 + 4·k … in its odd ones.
  static void arrange(float* x) {
    float from[step];
    std::copy_n(x, step, from);
    for (int g = 0; g < step / group; ++g)
      for (int odd = 0; odd < 2; ++odd) {
        const float* const quarter = from + g * group + odd * group / 2;
        __m128 a = _mm_loadu_ps(quarter), b = _mm_loadu_ps(quarter + 4), c = _mm_loadu_ps(quarter + 8), d = _mm_loadu_ps(quarter + 12);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        float* const to = x + odd * lanes + 4 * g;
        _mm_storeu_ps(to, a), _mm_storeu_ps(to + 2 * lanes, b), _mm_storeu_ps(to + 4 * lanes, c), _mm_storeu_ps(to + 6 * lanes, d);
      }
  }
};
#else
// Weights times their group's scale, which fp32 holds exactly.
struct Int4 {
  static constexpr int step = group, bytes = step / 2, parts = step / lanes;
  static constexpr int64_t step_scale_bytes = sizeof(bf16);
  static constexpr int64_t row_scale_bytes(int64_t in) { return in / group * static_cast<int64_t>(sizeof(bf16)); }
  struct Weights {
    Vec vectors[parts];
    BASED_INLINE Weights(const std::byte* w, const std::byte* scale) {
      bf16 bits{};
      std::memcpy(&bits, scale, sizeof bits);
      const Vec factor = broadcast(to_float(bits) * 0.0625f);  // the nibbles below are multiplied by 16
      int8_t nibbles[step];
      for (int i = 0; i < step / 2; ++i) {
        const auto pair = static_cast<uint8_t>(w[i]);
        nibbles[i] = static_cast<int8_t>(pair << 4);
        nibbles[i + step / 2] = static_cast<int8_t>(pair & 0xf0);
      }
      unroll<parts>([&](auto v) __attribute__((always_inline)) { vectors[v] = widened(nibbles + v * lanes) * factor; });
    }
  };
  static BASED_INLINE Vec multiply(const Weights& weights, const float* x, Vec sum) {
    unroll<parts>([&](auto v) __attribute__((always_inline)) { sum = fma(weights.vectors[v], load(x + v * lanes), sum); });
    return sum;
  }
  static BASED_INLINE float factor(const std::byte* /*scale*/) { return 1; }
  static void arrange(float* /*x*/) {}
};
#endif

template <int R, class Y>
BASED_INLINE void store_sums(const QuantisedLinear& p, Vec sums, Vec factors, int64_t row, int64_t column, int64_t stride) {
  float biases[lanes] = {};
  if (p.bias)
    for (int r = 0; r < R; ++r) biases[r] = to_float(static_cast<const Y*>(p.bias)[column + r * stride]);
  Y rounded[lanes];
  store(rounded, fma(sums, factors, load(biases)));
  for (int r = 0; r < R; ++r) static_cast<Y*>(p.y)[row * p.y_stride + column + r * stride] = rounded[r];
}

// Computes columns column, column + stride, … (R of them) of y for rows row .. row + C.
template <class Form, int R, int C>
__attribute__((noinline)) void dot_block(const QuantisedLinear& p, const float* arranged, int64_t column, int64_t stride, int64_t row) {
  // Far enough that the line arrives in time, and in the same or the next page.
  constexpr int64_t prefetched = 1024, line = 64;
  const int64_t steps = p.in / Form::step, rest = p.in % Form::step, width = quantised_width(p.in);
  const int64_t row_bytes = p.in * Form::bytes / Form::step, scale_bytes = Form::row_scale_bytes(p.in);
  const int64_t w_stride = stride * row_bytes, scale_stride = stride * scale_bytes;
  const std::byte* const w = static_cast<const std::byte*>(p.weight) + column * row_bytes;
  const std::byte* const scale = static_cast<const std::byte*>(p.scale) + column * scale_bytes;
  const float* const x = arranged + row * width;
  Vec acc[C][R];
  unroll<C>([&](auto c) __attribute__((always_inline)) { unroll<R>([&](auto r) __attribute__((always_inline)) { acc[c][r] = Vec{}; }); });
  const auto multiply = [&](auto r, const std::byte* weights, const std::byte* scales, int64_t i) __attribute__((always_inline)) {
    const typename Form::Weights values(weights, scales);
    unroll<C>([&](auto c)
                  __attribute__((always_inline)) { acc[c][r] = Form::multiply(values, x + c * width + i * Form::step, acc[c][r]); });
  };
  for (int64_t i = 0; i < steps; ++i) {
    const std::byte* const weights = w + i * Form::bytes;
    if (i * Form::bytes % line == 0)
      unroll<R>([&](auto r) __attribute__((always_inline)) { __builtin_prefetch(weights + r * w_stride + prefetched, 0, 2); });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      multiply(r, weights + r * w_stride, scale + r * scale_stride + i * Form::step_scale_bytes, i);
    });
  }
  if (rest > 0) {  // the last step is completed by zeros
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      std::byte weights[Form::bytes] = {}, scales[sizeof(int64_t)] = {};
      std::copy_n(w + r * w_stride + steps * Form::bytes, row_bytes - steps * Form::bytes, weights);
      if (Form::step_scale_bytes > 0)
        std::copy_n(scale + r * scale_stride + steps * Form::step_scale_bytes, scale_bytes - steps * Form::step_scale_bytes, scales);
      multiply(r, weights, scales, steps);
    });
  }
  float factors[lanes] = {};
  for (int r = 0; r < R; ++r) factors[r] = Form::factor(scale + r * scale_stride);
  unroll<C>([&](auto c) __attribute__((always_inline)) {
    const Vec sums = reduce(acc[c]);
    p.dtype == DType::bf16 ? store_sums<R, bf16>(p, sums, load(factors), row + c, column, stride)
                           : store_sums<R, float>(p, sums, load(factors), row + c, column, stride);
  });
}

// Computes columns column, column + stride, … (R of them) of y for all rows, up to C at once.
template <class Form, int R, int C>
void columns(const QuantisedLinear& p, const float* arranged, int64_t column, int64_t stride) {
  int64_t row = 0;
  for (; row + C <= p.rows; row += C) dot_block<Form, R, C>(p, arranged, column, stride, row);
  if constexpr (C > 2)
    for (; row + 2 <= p.rows; row += 2) dot_block<Form, R, 2>(p, arranged, column, stride, row);
  if constexpr (C > 1)
    if (row < p.rows) dot_block<Form, R, 1>(p, arranged, column, stride, row);
}

// Each of R equal parts of the columns is a stream, which is read from its first byte to its last. Adjacent rows as streams, which end soon
// and share pages, are read more slowly: the hardware prefetches one stream a page, and prefetch instructions have fewer reads in flight.
template <class Form, int R, int C>
void streams(const QuantisedLinear& p, const float* arranged, int64_t begin, int64_t end) {
  const int64_t blocks = (end - begin) / R;
  for (int64_t block = 0; block < blocks; ++block) columns<Form, R, C>(p, arranged, begin + block, blocks);
  for (int64_t column = begin + blocks * R; column < end; ++column) columns<Form, 1, C>(p, arranged, column, 1);
}

template <class Form>
void range(const QuantisedLinear& p, const float* arranged, int64_t begin, int64_t end) {
  p.rows == 1 ? streams<Form, one_row_streams, 1>(p, arranged, begin, end) : streams<Form, few_streams, most_rows>(p, arranged, begin, end);
}

template <class Form, class X>
void arrange(const QuantisedLinear& p, float* to) {
  const int64_t width = quantised_width(p.in);
  for (int64_t row = 0; row < p.rows; ++row, to += width) {
    const X* const x = static_cast<const X*>(p.x) + row * p.x_stride;
    for_each_vector(p.in, [&](int64_t i, int count) { store(to + i, load(x + i, count)); });
    std::fill(to + p.in, to + width, 0.0f);
    for (int64_t i = 0; i < width; i += Form::step) Form::arrange(to + i);
  }
}

}  // namespace

void quantised_linear_arrange(const QuantisedLinear& p, float* to) {
  const bool narrow = p.dtype == DType::bf16;
  if (p.form == WeightForm::int4) return narrow ? arrange<Int4, bf16>(p, to) : arrange<Int4, float>(p, to);
  return narrow ? arrange<Int8, bf16>(p, to) : arrange<Int8, float>(p, to);
}

void quantised_linear_range(const QuantisedLinear& p, const float* arranged, int64_t begin, int64_t end) {
  p.form == WeightForm::int4 ? range<Int4>(p, arranged, begin, end) : range<Int8>(p, arranged, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
