// A step of the gated delta rule, one head of one row. Columns of the state are independent, so they are processed a few vectors at a time,
// each over all key channels. With `delta` the key channels are read twice, the second time from the cache.
#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/delta_rule/cpu/simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

struct Token {
  float q[gated_delta_rule_max_key_dim], k[gated_delta_rule_max_key_dim], decay[gated_delta_rule_max_key_dim + lanes];
  int64_t key_dim, value_dim;
  float beta;
  bool delta, reads_before;
  float own_weight;  // with a bonus, the weight of the token's own v
};

template <class T>
void read_token(const GatedDeltaRule& a, int64_t row, int64_t head, Token& token) {
  const int64_t key_head = row * a.key_heads + head * a.key_heads / a.heads, at = row * a.heads + head, n = a.key_dim;
  const T *q = static_cast<const T*>(a.q) + key_head * n, *k = static_cast<const T*>(a.k) + key_head * n;
  for (int64_t i = 0; i < n; ++i) token.q[i] = to_float(q[i]) * a.scale, token.k[i] = to_float(k[i]);
  token.key_dim = n, token.value_dim = a.value_dim;
  token.beta = a.beta ? a.beta[at] : 1;
  token.delta = a.delta;
  token.reads_before = a.bonus != nullptr;
  token.own_weight = 0;
  if (a.bonus)
    for (int64_t i = 0; i < n; ++i) token.own_weight += token.q[i] * a.bonus[head * n + i] * token.k[i];
  const float* g = a.log_decay ? a.log_decay + at * a.decay_dim : nullptr;
  for (int64_t i = 0; i < n; i += lanes) {
    const int width = static_cast<int>(n - i < lanes ? n - i : lanes);
    store(token.decay + i, !g ? broadcast(1) : exp(a.decay_dim == 1 ? broadcast(*g) : load(g + i, width)));
  }
}

// Processes N vectors of columns, the last one of `width` lanes.
template <int N, class T>
void columns(const Token& token, const T* v, float* state, T* y, int width) {
  const auto whole = [&](int n) { return n + 1 < N || width == lanes; };
  const auto state_at = [&](const float* at, int n) { return whole(n) ? load(at + n * lanes) : load(at + n * lanes, width); };
  Vec values[N], added[N], sum[N];
  for (int n = 0; n < N; ++n) {
    values[n] = added[n] = whole(n) ? load(v + n * lanes) : load(v + n * lanes, width);
    sum[n] = zero();
  }
  if (token.delta) {
    const float* at = state;
    for (int64_t p = 0; p < token.key_dim; ++p, at += token.value_dim) {
      const Vec weight = broadcast(token.k[p] * token.decay[p]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[n] = fma(weight, state_at(at, n), sum[n]);
    }
    for (int n = 0; n < N; ++n) added[n] = added[n] - sum[n], sum[n] = zero();
  }
  for (int n = 0; n < N; ++n) added[n] = added[n] * token.beta;
  for (int64_t p = 0; p < token.key_dim; ++p, state += token.value_dim) {
    const Vec k = broadcast(token.k[p]), q = broadcast(token.q[p]), decay = broadcast(token.decay[p]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const Vec before = state_at(state, n), after = fma(before, decay, k * added[n]);
      sum[n] = fma(q, token.reads_before ? before : after, sum[n]);
      whole(n) ? store(state + n * lanes, after) : store(state + n * lanes, after, width);
    }
  }
  for (int n = 0; n < N; ++n) {
    const Vec read = fma(broadcast(token.own_weight), values[n], sum[n]);
    whole(n) ? store(y + n * lanes, read) : store(y + n * lanes, read, width);
  }
}

template <class T>
void run(const GatedDeltaRule& a, int64_t row, int64_t head) {
  Token token;
  read_token<T>(a, row, head, token);
  const int64_t at = (row * a.heads + head) * a.value_dim;
  const T* v = static_cast<const T*>(a.v) + at;
  T* y = static_cast<T*>(a.y) + at;
  float* state = a.state + (a.slot[row] * a.heads + head) * a.key_dim * a.value_dim;
  for (int64_t c = 0; c < a.value_dim;) {
    const int64_t remaining = a.value_dim - c;
    if (remaining >= 4 * lanes) {
      columns<4>(token, v + c, state + c, y + c, lanes);
      c += 4 * lanes;
    } else {
      columns<1>(token, v + c, state + c, y + c, static_cast<int>(remaining < lanes ? remaining : lanes));
      c += lanes;
    }
  }
}

}  // namespace

void gated_delta_rule_head(const GatedDeltaRule& a, int64_t row, int64_t head) {
  a.dtype == DType::f32 ? run<float>(a, row, head) : run<bf16>(a, row, head);
}

}  // namespace based::kernels::cpu::BASED_ISA
