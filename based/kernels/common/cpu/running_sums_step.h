// A step of one token and head of linear attention: adds the token to the two sums and reads them out, with one read and one write of the
// state. Included by the .simd.cpp files of the steps.
#pragma once
#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class F>
struct TokenFeatures {
  const F *k, *q;  // [features]
  int64_t features, head_dim;
  float decay;  // factor of the old sums
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

// Updates the denominator's state in place and returns its product with q.
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

// Adds the token to kv [features, head_dim], then computes y [head_dim] = `inverse` · q · kv.
template <class F, class T>
void read_out(const TokenFeatures<F>& token, const T* v, float* kv, T* y, float inverse) {
  for (int64_t c = 0; c < token.head_dim;) {
    const int64_t remaining = token.head_dim - c;
    int64_t step = 1;
    if (remaining >= 8 * lanes) {
      columns<8>(token, v + c, kv + c, y + c, inverse, lanes), step = 8;
    } else if (remaining >= 4 * lanes) {
      columns<4>(token, v + c, kv + c, y + c, inverse, lanes), step = 4;
    } else {
      columns<1>(token, v + c, kv + c, y + c, inverse, static_cast<int>(remaining < lanes ? remaining : lanes));
    }
    c += step * lanes;
  }
}

}  // namespace
}  // namespace based::kernels::cpu::BASED_ISA
