// One token against a ring of keys: blocks of keys in the order of their positions, one head at a time, with a running maximum.
#include <algorithm>
#include <limits>

#include "based/kernels/cpu/causal_attention_simd.h"
#include "based/kernels/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int64_t max_head_dim = 256;

template <class T, class Ring>
void write_ring(const T* x, int64_t head_dim, Ring* ring) {
  for (int64_t c = 0; c < head_dim; ++c) ring[c] = from_float<Ring>(to_float(x[c]));
}

// The keys or values of one slot and head by age: row 0 lies at `oldest`, and the ring closes after `capacity`.
template <class Ring>
struct RingRows {
  const Ring* data;
  int64_t oldest, capacity, stride;
  const Ring* operator[](int64_t age) const { return data + (oldest + age < capacity ? oldest + age : oldest + age - capacity) * stride; }
};

// sums += Σ_j weights[j] · row first + j, for V vectors from `column` on, of which the last has `tail` lanes.
template <int V, class Ring>
BASED_INLINE void add_rows(const float* weights, RingRows<Ring> rows, int64_t first, int64_t n, int64_t column, int tail, float* sums) {
  Vec acc[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) acc[i] = load(sums + column + i * lanes);
  for (int64_t j = 0; j < n; ++j) {
    const Ring* row = rows[first + j] + column;
    const Vec w = broadcast(weights[j]);
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) acc[i] = fma(w, i + 1 < V || tail == lanes ? load(row + i * lanes) : load(row + i * lanes, tail), acc[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) store(sums + column + i * lanes, acc[i]);
}

template <class T, class Ring>
void attend(const T* q, RingRows<Ring> k, RingRows<Ring> v, int64_t keys, int64_t d, float scale, T* y) {
  alignas(64) float query[max_head_dim], sums[max_head_dim] = {}, weights[attention_block];
  for (int64_t c = 0; c < d; ++c) query[c] = to_float(q[c]) * scale;
  const int64_t whole = d / lanes * lanes;
  const int tail = static_cast<int>(d - whole);
  float maximum = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t key = 0; key < keys; key += attention_block) {
    const int64_t n = std::min(attention_block, keys - key);
    std::fill_n(weights, attention_block, -std::numeric_limits<float>::infinity());
    for (int64_t j = 0; j < n; ++j) {
      const Ring* row = k[key + j];
      Vec sum{};
      for (int64_t c = 0; c < whole; c += lanes) sum = fma(load(query + c), load(row + c), sum);
      if (tail) sum = fma(load(query + whole, tail), load(row + whole, tail), sum);
      weights[j] = reduce_add(sum);
    }
    float top = maximum;
    for (int64_t j = 0; j < n; ++j) top = weights[j] < top ? top : weights[j];  // NaN comes through
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

template <class T, class Ring>
void step_row(const CausalAttentionStep& p, int64_t row, int64_t kv_head) {
  const int64_t d = p.head_dim, slot = p.slot ? p.slot[row] : row, position = p.position[slot];
  const int64_t row_size = p.kv_heads * d, base = slot * p.capacity * row_size + kv_head * d;
  Ring* k = static_cast<Ring*>(p.k_ring) + base;
  Ring* v = static_cast<Ring*>(p.v_ring) + base;
  write_ring(static_cast<const T*>(p.k) + row * p.k_stride + kv_head * d, d, k + position % p.capacity * row_size);
  write_ring(static_cast<const T*>(p.v) + row * p.v_stride + kv_head * d, d, v + position % p.capacity * row_size);
  const int64_t group = p.heads / p.kv_heads, keys = std::min(position + 1, p.capacity), oldest = (position + 1 - keys) % p.capacity;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    attend<T, Ring>(static_cast<const T*>(p.q) + row * p.q_stride + head * d, {k, oldest, p.capacity, row_size},
                    {v, oldest, p.capacity, row_size}, keys, d, p.scale, static_cast<T*>(p.y) + (row * p.heads + head) * d);
}

}  // namespace

void attention_step_row(const CausalAttentionStep& p, int64_t row, int64_t kv_head) {
  if (p.dtype == DType::bf16)
    p.ring_dtype == DType::bf16 ? step_row<bf16, bf16>(p, row, kv_head) : step_row<bf16, float>(p, row, kv_head);
  else
    p.ring_dtype == DType::bf16 ? step_row<float, bf16>(p, row, kv_head) : step_row<float, float>(p, row, kv_head);
}

}  // namespace based::kernels::cpu::BASED_ISA
