// A block of channels of a selective scan. Included by *.simd.cpp files. A channel is a vector lane, so sums over the state need no
// reduction across lanes, and the bits of a channel do not depend on its neighbours. A state is stored as [state_size][scan_block]. The
// rate, state and gradients of a state element are adjacent in memory. In separate arrays they would be whole pages apart, and 4 KiB
// aliasing would make loads wait for unrelated stores.
#pragma once
#include <algorithm>
#include <utility>

#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/common/cpu/softplus.h"
#include "based/kernels/scan/cpu/simd.h"

namespace based::kernels::cpu::BASED_ISA {

constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

// 2^x to about a unit in the last place; 2^-126 below that, infinity from 2^127.5 on, NaN for NaN.
BASED_INLINE Vec exp2(Vec x) {
  const Vec t = min(broadcast(128.0f), max(broadcast(-126.0f), x));
  // Adding 1.5·2^23 rounds to an integer and leaves it in the low bits.
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

// Transposes rows [n][size] to columns [size][scan_block], which are `pitch` floats apart and zero past n; and back.
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

// Parameters of a block's channels, equal for all tokens. Unused lanes past n have decay 1 and input 0.
template <class T>
struct ScanChannels {
  ScanBlock block;
  alignas(64) float skip[scan_block] = {}, bias[scan_block] = {};

  // Sets `rate` ([state_size] vectors, `pitch` floats apart) to A·log2 e, so that decays are powers of two.
  template <int64_t pitch>
  ScanChannels(const SelectiveScan& p, const ScanBlock& channels, float* rate, std::integral_constant<int64_t, pitch>) : block(channels) {
    to_columns<pitch>(static_cast<const T*>(p.A_log) + channels.first * p.state_size, channels.n, p.state_size, rate);
    for (int64_t c = 0; c < scan_block; c += lanes) {
      const int n = used(c);
      for (int64_t s = 0; s < p.state_size; ++s) {
        float* r = rate + s * pitch + c;
        store(r, n == 0 ? Vec{} : exp(load(r)) * -log2_e);
      }
      if (p.D && n > 0) store(skip + c, load_some(static_cast<const T*>(p.D) + channels.first + c, n));
      if (p.dt_bias && n > 0) store(bias + c, load_some(static_cast<const T*>(p.dt_bias) + channels.first + c, n));
    }
  }
  int used(int64_t c) const { return static_cast<int>(std::clamp<int64_t>(block.n - c, 0, lanes)); }
};

// Loads one vector of channels of a token's x, dt or z.
template <class T>
BASED_INLINE Vec token_at(const void* p, int64_t token, int64_t stride, int64_t channel, int n) {
  return load_some(static_cast<const T*>(p) + token * stride + channel, n);
}

// Loads a token's B or C of one group as floats.
template <class T>
BASED_INLINE void read_group(const void* p, int64_t token, int64_t stride, int64_t group, int64_t size, float* out) {
  const T* source = static_cast<const T*>(p) + token * stride + group * size;
  for (int64_t s = 0; s < size; s += lanes) {
    const int n = static_cast<int>(std::min<int64_t>(lanes, size - s));
    store_some(out + s, load_some(source + s, n), n);
  }
}

}  // namespace based::kernels::cpu::BASED_ISA
