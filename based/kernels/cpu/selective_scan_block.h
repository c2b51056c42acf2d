// A block of channels of a selective scan, for *.simd.cpp files: channels are the lanes, so that neither its sums over the state nor its
// bits need a lane's neighbours. Inside, a state is [state_size][scan_block], and a number's rate, state and gradients lie side by side: in
// arrays of their own they would be whole pages apart, and a load would wait for a store that it does not depend on.
#pragma once
#include <algorithm>
#include <utility>

#include "based/kernels/cpu/selective_scan_simd.h"
#include "based/kernels/cpu/silu.h"
#include "based/kernels/cpu/softplus.h"

namespace based::kernels::cpu::BASED_ISA {

constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

// 2^x to about a unit in the last place; 2^-126 below that, infinity from 2^127.5 on, NaN for NaN.
BASED_INLINE Vec exp2(Vec x) {
  const Vec t = min(broadcast(128.0f), max(broadcast(-126.0f), x));
  // Adding 1.5·2^23 rounds to a whole number and leaves it in the low bits.
  const Vec shifted = t + 12582912.0f, r = t - (shifted - 12582912.0f);
  Vec p = broadcast(1.5403530e-4f);
  p = fma(p, r, broadcast(1.3333558e-3f));
  p = fma(p, r, broadcast(9.6181291e-3f));
  p = fma(p, r, broadcast(5.5504109e-2f));
  p = fma(p, r, broadcast(2.4022651e-1f));
  p = fma(p, r, broadcast(6.9314718e-1f));
  p = fma(p, r, broadcast(1.0f));
  const IntVec whole = reinterpret_cast<IntVec>(shifted) - 0x4b400000;
  return p * reinterpret_cast<Vec>((whole + 127) << 23);
}

// Rows [n][size] in memory to columns [size][scan_block], zero past n, `pitch` apart, and back.
template <int64_t pitch, class T>
void to_columns(const T* rows, int64_t n, int64_t size, float* columns) {
  for (int64_t c = 0; c < scan_block; c += lanes)
    for (int64_t s = 0; s < size; s += lanes) {
      const int wide = static_cast<int>(std::min<int64_t>(lanes, size - s));
      Vec tile[lanes];
      for (int i = 0; i < lanes; ++i) tile[i] = c + i < n ? load_some(rows + (c + i) * size + s, wide) : Vec{};
      transpose(tile);
      for (int i = 0; i < wide; ++i) store(columns + (s + i) * pitch + c, tile[i]);
    }
}
template <int64_t pitch>
void to_rows(const float* columns, int64_t n, int64_t size, float* rows) {
  for (int64_t c = 0; c < n; c += lanes)
    for (int64_t s = 0; s < size; s += lanes) {
      const int wide = static_cast<int>(std::min<int64_t>(lanes, size - s));
      Vec tile[lanes];
      for (int i = 0; i < lanes; ++i) tile[i] = i < wide ? load(columns + (s + i) * pitch + c) : Vec{};
      transpose(tile);
      for (int64_t i = 0; i < lanes && c + i < n; ++i) store_some(rows + (c + i) * size + s, tile[i], wide);
    }
}

// What a block's tokens have in common. Lanes past n have decay 1 and nothing that comes in.
template <class T>
struct ScanChannels {
  ScanBlock block;
  alignas(64) float skip[scan_block] = {}, bias[scan_block] = {};

  // `rate`, [state_size] vectors `pitch` apart, becomes A·log2 e, so that decays are powers of two.
  template <int64_t pitch>
  ScanChannels(const SelectiveScan& p, const ScanBlock& of, float* rate, std::integral_constant<int64_t, pitch>) : block(of) {
    to_columns<pitch>(static_cast<const T*>(p.A_log) + of.first * p.state_size, of.n, p.state_size, rate);
    for (int64_t c = 0; c < scan_block; c += lanes) {
      const int n = used(c);
      for (int64_t s = 0; s < p.state_size; ++s) {
        float* r = rate + s * pitch + c;
        store(r, n == 0 ? Vec{} : exp(load(r)) * -log2_e);
      }
      if (p.D && n > 0) store(skip + c, load_some(static_cast<const T*>(p.D) + of.first + c, n));
      if (p.dt_bias && n > 0) store(bias + c, load_some(static_cast<const T*>(p.dt_bias) + of.first + c, n));
    }
  }
  int used(int64_t c) const { return static_cast<int>(std::clamp<int64_t>(block.n - c, 0, lanes)); }
};

// A vector's share of a token's x, dt or z.
template <class T>
BASED_INLINE Vec token_at(const void* p, int64_t token, int64_t stride, int64_t channel, int n) {
  return load_some(static_cast<const T*>(p) + token * stride + channel, n);
}

// A token's B or C of a group as floats.
template <class T>
BASED_INLINE void read_group(const void* p, int64_t token, int64_t stride, int64_t group, int64_t size, float* out) {
  const T* from = static_cast<const T*>(p) + token * stride + group * size;
  for (int64_t s = 0; s < size; s += lanes) {
    const int n = static_cast<int>(std::min<int64_t>(lanes, size - s));
    store_some(out + s, load_some(from + s, n), n);
  }
}

}  // namespace based::kernels::cpu::BASED_ISA
