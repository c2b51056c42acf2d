// The recurrent step of Taylor attention (paper, algorithm 2), one head of one row: the state is read and written once.
#include <cassert>

#include "based/kernels/common/cpu/running_sums_step.h"
#include "based/kernels/taylor/cpu/simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int64_t max_feature_dim = 64, max_packed = packed_features(max_feature_dim);

// Packed features of one token, in memory order. Whole vectors are stored, so each row of the triangle overwrites the elements that the
// previous row stored past its end.
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

template <class T>
void run(const TaylorAttention& a, int64_t row, int64_t head) {
  const int64_t d = a.feature_dim, head_dim = a.head_dim, packed = packed_features(d), token_head = row * a.heads + head;
  const int64_t at = (a.slot ? a.slot[row] : row) * a.heads + head;
  float phi_k[max_packed + lanes], phi_q[max_packed + lanes];
  token_features(static_cast<const T*>(a.k) + token_head * d, d, phi_k);
  token_features(static_cast<const T*>(a.q) + token_head * d, d, phi_q);
  const TokenFeatures<float> token{phi_k, phi_q, packed, head_dim, a.decay ? a.decay[head] : 1.0f};
  TokenFeatures<float> sums = token;
  if (!a.decay_denominator) sums.decay = 1;
  float* k_state = a.k_state + at * packed;
  const float sum = denominator(sums, k_state), inverse = 1.0f / sum;
  assert(!(sum < 0.5f * 0.99f * k_state[0]));
  if (a.denominator) a.denominator[token_head] = sum;

  read_out(token, static_cast<const T*>(a.v) + token_head * head_dim, a.kv_state + at * packed * head_dim,
           static_cast<T*>(a.y) + token_head * head_dim, inverse);
}

}  // namespace

void taylor_step(const TaylorAttention& a, int64_t row, int64_t head) {
  a.dtype == DType::f32 ? run<float>(a, row, head) : run<bf16>(a, row, head);
}

}  // namespace based::kernels::cpu::BASED_ISA
