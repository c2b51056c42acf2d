// The recurrent step of Taylor attention (paper, algorithm 2), one head of one row: the state is read and written once.
#include <cassert>

#include "based/kernels/cpu/taylor_attention_simd.h"
#include "based/kernels/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int64_t max_feature_dim = 64, max_packed = packed_features(max_feature_dim);

// Packed features of one token, in memory order. Whole vectors are stored, so each run of the triangle overwrites the last one's excess.
template <class T>
void token_features(const T* x, int64_t d, float* phi) {
  float ones[max_feature_dim + 1 + lanes] = {1.0f};
  for (int64_t i = 0; i < d; ++i) ones[i + 1] = to_float(x[i]);
  int64_t p = 0;
  for (int64_t i = 0; i <= d; ++i) {
    const Vec xi = broadcast(ones[i]);
    for (int64_t j = i; j <= d; j += lanes) store(phi + p + (j - i), xi * load(ones + j));
    if (i > 0) phi[p] *= 0.70710678118654752f;
    p += d + 1 - i;
  }
}

struct Token {
  const float *phi_k, *phi_q;
  int64_t packed, head_dim;
  float decay;
};

// state[:, columns] = decay · state + φ(k) v; y = φ(q) · state. N vectors of columns, the last one of `width` lanes.
template <int N, class T>
void columns(const Token& token, const T* v, float* state, T* y, float inverse, int width) {
  Vec values[N], sum[N];
  for (int n = 0; n < N; ++n) {
    values[n] = n + 1 < N || width == lanes ? load(v + n * lanes) : load(v + n * lanes, width);
    sum[n] = zero();
  }
  const Vec decay = broadcast(token.decay);
  for (int64_t p = 0; p < token.packed; ++p, state += token.head_dim) {
    const Vec k = broadcast(token.phi_k[p]), q = broadcast(token.phi_q[p]);
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

// The denominator's state, updated in place, and its product with φ(q).
float denominator(const Token& token, float* k_state) {
  Vec sum = zero();
  const Vec decay = broadcast(token.decay);
  for (int64_t p = 0; p < token.packed; p += lanes) {
    const int width = static_cast<int>(token.packed - p < lanes ? token.packed - p : lanes);
    const Vec z = fma(load(k_state + p, width), decay, load(token.phi_k + p, width));
    store(k_state + p, z, width);
    sum = fma(z, load(token.phi_q + p, width), sum);
  }
  return reduce_add(sum);
}

template <class T>
void run(const TaylorAttention& a, int64_t row, int64_t head) {
  const int64_t d = a.feature_dim, head_dim = a.head_dim, packed = packed_features(d), token_head = row * a.heads + head;
  const int64_t at = (a.slot ? a.slot[row] : row) * a.heads + head;
  float phi_k[max_packed + lanes], phi_q[max_packed + lanes];
  token_features(static_cast<const T*>(a.k) + token_head * d, d, phi_k);
  token_features(static_cast<const T*>(a.q) + token_head * d, d, phi_q);
  const Token token{phi_k, phi_q, packed, head_dim, a.decay ? a.decay[head] : 1.0f};
  float* k_state = a.k_state + at * packed;
  const float sum = denominator(token, k_state), inverse = 1.0f / sum;
  assert(!(sum < 0.5f * 0.99f * k_state[0]));
  if (a.denominator) a.denominator[token_head] = sum;

  float* state = a.kv_state + at * packed * head_dim;
  const T* v = static_cast<const T*>(a.v) + token_head * head_dim;
  T* y = static_cast<T*>(a.y) + token_head * head_dim;
  for (int64_t c = 0; c < head_dim;) {
    const int64_t left = head_dim - c;
    int64_t step = 1;
    if (left >= 8 * lanes) {
      columns<8>(token, v + c, state + c, y + c, inverse, lanes), step = 8;
    } else if (left >= 4 * lanes) {
      columns<4>(token, v + c, state + c, y + c, inverse, lanes), step = 4;
    } else {
      columns<1>(token, v + c, state + c, y + c, inverse, static_cast<int>(left < lanes ? left : lanes));
    }
    c += step * lanes;
  }
}

}  // namespace

void taylor_step(const TaylorAttention& a, int64_t row, int64_t head) {
  a.dtype == DType::f32 ? run<float>(a, row, head) : run<bf16>(a, row, head);
}

}  // namespace based::kernels::cpu::BASED_ISA
