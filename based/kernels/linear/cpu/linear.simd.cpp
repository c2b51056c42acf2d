// Dot products of blocks of R weight rows and C activation rows, along `in`. For any R and C, each output is one chain of vector additions
// from the first element to the last, and one reduction tree at the end. So the bits of a row do not depend on the batch.
#include <algorithm>
#include <type_traits>

#include "based/kernels/linear/cpu/dot.h"
#include "based/kernels/linear/cpu/linear_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// Multiplication of elements of type T: each step multiplies `step` elements and accumulates into `lanes` sums.
template <class T>
struct Dot;

template <>
struct Dot<float> {
  static constexpr int step = lanes;
  using Operand = Vec;
  static BASED_INLINE Operand read(const float* p) { return load(p); }
  static BASED_INLINE Operand read(const float* p, int n) { return load(p, n); }
  static BASED_INLINE Vec multiply_add(Operand a, Operand b, Vec sum) { return fma(a, b, sum); }
};

#if defined(__AVX512BF16__)
template <>
struct Dot<bf16> {
  static constexpr int step = 2 * lanes;
  using Operand = __m512i;
  static BASED_INLINE Operand read(const bf16* p) { return _mm512_loadu_si512(p); }
  static BASED_INLINE Operand read(const bf16* p, int n) {
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p);
  }
  static BASED_INLINE Vec multiply_add(Operand a, Operand b, Vec sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#else
// Two bf16 in 32 bits convert to fp32 by a shift (lower element) and by clearing the lower half (upper element).
template <>
struct Dot<bf16> {
  static constexpr int step = 2 * lanes;
  using Operand = UintVec;
  typedef uint32_t Unaligned __attribute__((vector_size(lanes * 4), aligned(2), may_alias));
  static BASED_INLINE Operand read(const bf16* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static BASED_INLINE Operand read(const bf16* p, int n) {
    bf16 padded[step] = {};
    for (int i = 0; i < n; ++i) padded[i] = p[i];
    return read(padded);
  }
  static BASED_INLINE Vec multiply_add(Operand a, Operand b, Vec sum) {
    sum = fma(reinterpret_cast<Vec>(a << 16), reinterpret_cast<Vec>(b << 16), sum);
    return fma(reinterpret_cast<Vec>(a & 0xffff0000u), reinterpret_cast<Vec>(b & 0xffff0000u), sum);
  }
};
#endif

#if defined(__AVX512F__)
constexpr int block_rows = 8, block_columns = 3;  // weight rows x activation rows in registers
#else
constexpr int block_rows = 4, block_columns = 2;
#endif
static_assert(linear_columns % block_rows == 0);

// Prefetch state of the next block's weights, in address order. `bytes` are prefetched per step, spread evenly over the current block: a
// burst would fill the queue of outstanding reads and delay the current block's reads.
struct Prefetch {
  const char *next, *target;
  int64_t bytes;
};

template <int R, class Y>
BASED_INLINE void store_output(Vec value, Y* y, bool accumulate) {
  if (accumulate) value += load(y, R);
  store(y, value, R);
}

// Computes R columns of y for rows row .. row + C. All weight rows are read together, in R streams: one stream at a time, left to the
// hardware prefetcher, gives 0.7 to 0.8 of the rate for one row of x, and loads each operand of x R times.
template <class T, int R, int C>
__attribute__((noinline)) void dot_block(const Linear& p, int64_t column, int64_t row, Prefetch& prefetch) {
  using D = Dot<T>;
  const int64_t in = p.in, w_stride = p.weight_stride, x_stride = p.x_stride;
  const T *const w = static_cast<const T*>(p.weight) + column * w_stride, *const lower = w + R / 2 * w_stride;
  const T* const x = static_cast<const T*>(p.x) + row * x_stride;
  Vec acc[C][R];
  unroll<C>([&](auto c) __attribute__((always_inline)) { unroll<R>([&](auto r) __attribute__((always_inline)) { acc[c][r] = Vec{}; }); });
  const auto weight_row = [&](auto r) __attribute__((always_inline)) {
    return r < R / 2 ? w + r * w_stride : lower + (r - R / 2) * w_stride;
  };
  // Multiplies elements i .. i + step (or the last `count` elements).
  const auto multiply = [&](int64_t i, auto... count) __attribute__((always_inline)) {
    typename D::Operand b[C];
    unroll<C>([&](auto c) __attribute__((always_inline)) { b[c] = D::read(x + c * x_stride + i, count...); });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      const typename D::Operand a = D::read(weight_row(r) + i, count...);
      unroll<C>([&](auto c) __attribute__((always_inline)) { acc[c][r] = D::multiply_add(a, b[c], acc[c][r]); });
    });
  };
  const char *next = prefetch.next, *target = prefetch.target;
  const int64_t bytes = prefetch.bytes;
  int64_t i = 0;
  for (; i + D::step <= in; i += D::step) {
    for (target += bytes; next < target; next += 64) __builtin_prefetch(next, 0, 2);
    multiply(i);
  }
  if (i < in) multiply(i, static_cast<int>(in - i));
  prefetch.next = next, prefetch.target = target;
  const Vec bias = p.bias ? load(static_cast<const T*>(p.bias) + column, R) : Vec{};
  unroll<C>([&](auto c) __attribute__((always_inline)) {
    const Vec value = reduce(acc[c]) + bias;
    const int64_t offset = (row + c) * p.y_stride + column;
    p.y_dtype == DType::bf16 ? store_output<R>(value, static_cast<bf16*>(p.y) + offset, p.accumulate)
                             : store_output<R>(value, static_cast<float*>(p.y) + offset, p.accumulate);
  });
}

// Computes R columns of y for all rows.
template <class T, int R>
void columns(const Linear& p, int64_t column) {
  constexpr int64_t size = sizeof(T);
  const char* const next = static_cast<const char*>(p.weight) + (column + R) * p.weight_stride * size;
  const int64_t steps = (p.rows + block_columns - 1) / block_columns * (p.in / Dot<T>::step);
  Prefetch prefetch{next, next, steps == 0 ? 0 : (R * p.in * size + steps - 1) / steps};
  int64_t row = 0;
  // Four rows are split 2 + 2, not 3 + 1.
  for (; p.rows - row > block_columns + 1 || p.rows - row == block_columns; row += block_columns)
    dot_block<T, R, block_columns>(p, column, row, prefetch);
  for (; p.rows - row >= 2; row += 2) dot_block<T, R, 2>(p, column, row, prefetch);
  if (row < p.rows) dot_block<T, R, 1>(p, column, row, prefetch);
}

template <class T>
void range(const Linear& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + block_rows <= end; column += block_rows) columns<T, block_rows>(p, column);
  for (; column < end; ++column) columns<T, 1>(p, column);
}

}  // namespace

void linear_range(const Linear& p, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? range<bf16>(p, begin, end) : range<float>(p, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
