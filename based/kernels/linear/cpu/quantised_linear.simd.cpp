// Dot products of blocks of R weight rows and C activation rows, in steps of 32 weights. For any R and C, each output is one chain of
// vector additions from the first step to the last, and one reduction tree at the end. So the bits of a row do not depend on the batch.
#include <algorithm>
#include <cstring>
#include <utility>

#include "based/kernels/common/cpu/vec.h"
#include "based/kernels/linear/cpu/quantised_linear_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int step = static_cast<int>(kInt4Group);  // weights of a step
constexpr int parts = step / lanes;                 // vectors of a step
#if defined(__AVX512F__)
constexpr int most_rows = 4;  // activation rows whose sums fit in registers
#else
constexpr int most_rows = 2;
#endif
constexpr int block_columns = static_cast<int>(quantised_columns);

template <int N, class F>
BASED_INLINE void repeat(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

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

// Weights of int8; the row's scale multiplies the sum.
struct Int8 {
  static constexpr int64_t bytes = step;
  static BASED_INLINE void read(const std::byte* w, const std::byte* /*scale*/, Vec (&to)[parts]) {
    repeat<parts>([&](auto v) __attribute__((always_inline)) { to[v] = widened(reinterpret_cast<const int8_t*>(w) + v * lanes); });
  }
  static constexpr int64_t scale_bytes(int64_t /*in*/) { return sizeof(float); }
  static constexpr int64_t step_scale_bytes = 0;
  static BASED_INLINE float factor(const std::byte* scale) {
    float value = 0;
    std::memcpy(&value, scale, sizeof value);
    return value;
  }
};

// Weights of int4 times their group's scale, which fp32 holds exactly.
struct Int4 {
  static constexpr int64_t bytes = step / 2;
  static BASED_INLINE void read(const std::byte* w, const std::byte* scale, Vec (&to)[parts]) {
#if defined(__AVX512F__)
    // A table of the 16 products; vpermps reads only the low four bits of each index.
    int16_t bits = 0;
    std::memcpy(&bits, scale, sizeof bits);
    const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi16(bits), 16));
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512 table = _mm512_mul_ps(values, factor);
    const __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
    to[0] = _mm512_permutexvar_ps(pairs, table);
    to[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table);
#else
    bf16 bits{};
    std::memcpy(&bits, scale, sizeof bits);
    const Vec factor = broadcast(to_float(bits) * 0.0625f);  // the nibbles below are multiplied by 16
    int8_t nibbles[step];
    for (int i = 0; i < step / 2; ++i) {
      const auto pair = static_cast<uint8_t>(w[i]);
      nibbles[i] = static_cast<int8_t>(pair << 4);
      nibbles[i + step / 2] = static_cast<int8_t>(pair & 0xf0);
    }
    repeat<parts>([&](auto v) __attribute__((always_inline)) { to[v] = widened(nibbles + v * lanes) * factor; });
#endif
  }
  static constexpr int64_t scale_bytes(int64_t in) { return in / step * static_cast<int64_t>(sizeof(bf16)); }
  static constexpr int64_t step_scale_bytes = sizeof(bf16);
  static BASED_INLINE float factor(const std::byte* /*scale*/) { return 1; }
};

template <class Y>
BASED_INLINE void store_sum(const QuantisedLinear& p, float sum, float factor, int64_t row, int64_t column) {
  const float bias = p.bias ? to_float(static_cast<const Y*>(p.bias)[column]) : 0.0f;
  // An explicit fma, since the compiler may fuse a * b + c for some C and not for others.
  static_cast<Y*>(p.y)[row * p.y_stride + column] = from_float<Y>(fma(broadcast(sum), broadcast(factor), broadcast(bias))[0]);
}

// Computes R columns of y for rows row .. row + C. `fetch` is where the next block's weights begin, which are prefetched in address order.
template <class Form, int R, int C>
__attribute__((noinline)) void dot_block(const QuantisedLinear& p, int64_t column, int64_t row, const std::byte* fetch) {
  const int64_t steps = p.in / step, rest = p.in % step, row_bytes = p.in * Form::bytes / step, scales = Form::scale_bytes(p.in);
  const std::byte* const w = static_cast<const std::byte*>(p.weight) + column * row_bytes;
  const std::byte* const scale = static_cast<const std::byte*>(p.scale) + column * scales;
  const float* const x = static_cast<const float*>(p.x) + row * p.x_stride;
  Vec acc[C][R];
  repeat<C>([&](auto c) __attribute__((always_inline)) { repeat<R>([&](auto r) __attribute__((always_inline)) { acc[c][r] = Vec{}; }); });
  const auto multiply = [&](auto r, const std::byte* weights, const std::byte* group_scale, const float* in, int64_t in_stride)
      __attribute__((always_inline)) {
    Vec values[parts];
    Form::read(weights, group_scale, values);
    repeat<C>([&](auto c) __attribute__((always_inline)) {
      repeat<parts>([&](auto v)
                        __attribute__((always_inline)) { acc[c][r] = fma(values[v], load(in + c * in_stride + v * lanes), acc[c][r]); });
    });
  };
  for (int64_t i = 0; i < steps; ++i) {
    if (fetch != nullptr) {
      for (int64_t line = 0; line < R * Form::bytes; line += 64) __builtin_prefetch(fetch + i * R * Form::bytes + line, 0, 2);
    }
    repeat<R>([&](auto r) __attribute__((always_inline)) {
      multiply(r, w + r * row_bytes + i * Form::bytes, scale + r * scales + i * Form::step_scale_bytes, x + i * step, p.x_stride);
    });
  }
  if (rest > 0) {  // int8 only: the last step is completed by zeros
    float padded_x[C][step] = {};
    for (int c = 0; c < C; ++c) std::copy_n(x + c * p.x_stride + steps * step, rest, padded_x[c]);
    repeat<R>([&](auto r) __attribute__((always_inline)) {
      std::byte padded[step] = {};
      std::copy_n(w + r * row_bytes + steps * Form::bytes, rest, padded);
      multiply(r, padded, scale + r * scales, padded_x[0], step);
    });
  }
  repeat<R>([&](auto r) __attribute__((always_inline)) {
    const float factor = Form::factor(scale + r * scales);
    repeat<C>([&](auto c) __attribute__((always_inline)) {
      const float sum = reduce_add(acc[c][r]);
      p.dtype == DType::bf16 ? store_sum<bf16>(p, sum, factor, row + c, column + r) : store_sum<float>(p, sum, factor, row + c, column + r);
    });
  });
}

// Computes R columns of y for all rows.
template <class Form, int R>
void columns(const QuantisedLinear& p, int64_t column) {
  const int64_t row_bytes = p.in * Form::bytes / step;
  const std::byte* fetch = R > 1 ? static_cast<const std::byte*>(p.weight) + (column + R) * row_bytes : nullptr;
  int64_t row = 0;
  for (; row + most_rows <= p.rows; row += most_rows, fetch = nullptr) dot_block<Form, R, most_rows>(p, column, row, fetch);
  if constexpr (most_rows > 2)
    for (; row + 2 <= p.rows; row += 2, fetch = nullptr) dot_block<Form, R, 2>(p, column, row, fetch);
  if (row < p.rows) dot_block<Form, R, 1>(p, column, row, fetch);
}

template <class Form>
void range(const QuantisedLinear& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + block_columns <= end; column += block_columns) columns<Form, block_columns>(p, column);
  for (; column < end; ++column) columns<Form, 1>(p, column);
}

}  // namespace

void quantised_linear_range(const QuantisedLinear& p, int64_t begin, int64_t end) {
  p.form == WeightForm::int4 ? range<Int4>(p, begin, end) : range<Int8>(p, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
