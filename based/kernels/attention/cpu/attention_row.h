// Attention of one query over the keys of one head. `Rows` hides the storage of keys, so ring and paged steps share this code. Included by
// *.simd.cpp files.
#pragma once
#include <algorithm>
#include <limits>

#include "based/kernels/attention/cpu/causal_simd.h"
#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

inline constexpr int64_t max_head_dim = 256;

template <class T, class U>
void write_row(const T* x, int64_t head_dim, U* row) {
  for (int64_t c = 0; c < head_dim; ++c) row[c] = from_float<U>(to_float(x[c]));
}

// sums += Σ_j weights[j] · rows[first + j] for V vectors of columns, starting at `column`. The last vector has `tail` valid lanes.
template <int V, class Rows>
BASED_INLINE void add_rows(const float* weights, Rows rows, int64_t first, int64_t n, int64_t column, int tail, float* sums) {
  Vec acc[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) acc[i] = load(sums + column + i * lanes);
  for (int64_t j = 0; j < n; ++j) {
    const auto* row = rows[first + j] + column;
    const Vec w = broadcast(weights[j]);
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) acc[i] = fma(w, i + 1 < V || tail == lanes ? load(row + i * lanes) : load(row + i * lanes, tail), acc[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) store(sums + column + i * lanes, acc[i]);
}

// y = Σ_j softmax_j(scale·q·k[j]) v[j] over 0 ≤ j < keys, d columns. k[j] and v[j] return pointers to key and value j of the head. Keys are
// processed in blocks with a running maximum.
template <class T, class Rows>
void attend(const T* q, Rows k, Rows v, int64_t keys, int64_t d, float scale, T* y) {
  alignas(64) float query[max_head_dim], sums[max_head_dim] = {}, weights[attention_block];
  for (int64_t c = 0; c < d; ++c) query[c] = to_float(q[c]) * scale;
  const int64_t whole = d / lanes * lanes;
  const int tail = static_cast<int>(d - whole);
  float maximum = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t key = 0; key < keys; key += attention_block) {
    const int64_t n = std::min(attention_block, keys - key);
    std::fill_n(weights, attention_block, -std::numeric_limits<float>::infinity());
    for (int64_t j = 0; j < n; ++j) {
      const auto* row = k[key + j];
      Vec sum{};
      for (int64_t c = 0; c < whole; c += lanes) sum = fma(load(query + c), load(row + c), sum);
      if (tail) sum = fma(load(query + whole, tail), load(row + whole, tail), sum);
      weights[j] = reduce_add(sum);
    }
    float top = maximum;
    for (int64_t j = 0; j < n; ++j) top = weights[j] < top ? top : weights[j];  // propagates NaN
    Vec sum{};
    for (int64_t j = 0; j < attention_block; j += lanes) {
      const Vec e = exp(load(weights + j) - top);
      store(weights + j, e);
      sum += e;
    }
    const float keep = exp(broadcast(maximum - top))[0];
    total = total * keep + reduce_add(sum);
    maximum = top;
    for (int64_t c = 0; c < d; ++c) sums[c] *= keep;
    int64_t c = 0;
    for (; c + 4 * lanes <= d; c += 4 * lanes) add_rows<4>(weights, v, key, n, c, lanes, sums);
    for (; c < d; c += lanes) add_rows<1>(weights, v, key, n, c, static_cast<int>(std::min<int64_t>(lanes, d - c)), sums);
  }
  for (int64_t c = 0; c < d; ++c) y[c] = from_float<T>(sums[c] / total);
}

}  // namespace
}  // namespace based::kernels::cpu::BASED_ISA
