// One token of one head into the two sums of linear attention and out of them: the state is read and written once. Included by the
// steps' .simd.cpp files.
#pragma once
#include "based/kernels/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class F>
struct TokenFeatures {
  const F *k, *q;  // [features]
  int64_t features, head_dim;
  float decay;  // the sums are multiplied by it first
};

// state[:, columns] = decay · state + k v; y = q · state. N vectors of columns, the last one of `width` lanes.
template <int N, class F, class T>
void columns(const TokenFeatures<F>& token, const T* v, float* state, T* y, float inverse, int width) {
  Vec values[N], sum[N];
  for (int n = 0; n < N; ++n) {
    values[n] = n + 1 < N || width == lanes ? load(v + n * lanes) : load(v + n * lanes, width);
    sum[n] = zero();
  }
  const Vec decay = broadcast(token.decay);
  for (int64_t p = 0; p < token.features; ++p, state += token.head_dim) {
    const Vec k = broadcast(to_float(token.k[p])), q = broadcast(to_float(token.q[p]));
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      float* at = state + n * lanes;
      if (n + 1 < N || width == lanes) {
        const Vec s = fma(load(at), decay, k * values[n]);
        store(at, s);
        sum[n] = fma(q, s, sum[n]);
      } else {
        const Vec s = fma(load(at, width), decay, k * values[n]);
        store(at, s, width);
        sum[n] = fma(q, s, sum[n]);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    if (n + 1 < N || width == lanes)
      store(y + n * lanes, sum[n] * inverse);
    else
      store(y + n * lanes, sum[n] * inverse, width);
  }
}

// The denominator's state, updated in place, and its product with q.
template <class F>
float denominator(const TokenFeatures<F>& token, float* k_state) {
  Vec sum = zero();
  const Vec decay = broadcast(token.decay);
  for (int64_t p = 0; p < token.features; p += lanes) {
    const int width = static_cast<int>(token.features - p < lanes ? token.features - p : lanes);
    const Vec z = fma(load(k_state + p, width), decay, load(token.k + p, width));
    store(k_state + p, z, width);
    sum = fma(z, load(token.q + p, width), sum);
  }
  return reduce_add(sum);
}

// The token into kv [features, head_dim], then y [head_dim] of it, times `inverse`.
template <class F, class T>
void read_out(const TokenFeatures<F>& token, const T* v, float* kv, T* y, float inverse) {
  for (int64_t c = 0; c < token.head_dim;) {
    const int64_t left = token.head_dim - c;
    int64_t step = 1;
    if (left >= 8 * lanes) {
      columns<8>(token, v + c, kv + c, y + c, inverse, lanes), step = 8;
    } else if (left >= 4 * lanes) {
      columns<4>(token, v + c, kv + c, y + c, inverse, lanes), step = 4;
    } else {
      columns<1>(token, v + c, kv + c, y + c, inverse, static_cast<int>(left < lanes ? left : lanes));
    }
    c += step * lanes;
  }
}

}  // namespace
}  // namespace based::kernels::cpu::BASED_ISA
