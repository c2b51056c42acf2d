// Decode attention of one token over a ring of keys, in the order of their positions.
#include <algorithm>

#include "based/kernels/attention/cpu/attention_row.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// The keys or values of one slot and head, indexed by age: index 0 is the oldest, at ring index `oldest`; the ring wraps at `capacity`.
template <class Ring>
struct RingRows {
  const Ring* data;
  int64_t oldest, capacity, stride;
  const Ring* operator[](int64_t age) const { return data + (oldest + age < capacity ? oldest + age : oldest + age - capacity) * stride; }
};

template <class T, class Ring>
void step_row(const CausalAttentionStep& p, int64_t row, int64_t kv_head) {
  const int64_t d = p.head_dim, slot = p.slot ? p.slot[row] : row, position = p.position[row];
  const int64_t row_size = p.kv_heads * d, base = slot * p.capacity * row_size + kv_head * d;
  Ring* k = static_cast<Ring*>(p.k_ring) + base;
  Ring* v = static_cast<Ring*>(p.v_ring) + base;
  write_row(static_cast<const T*>(p.k) + row * p.k_stride + kv_head * d, d, k + position % p.capacity * row_size);
  write_row(static_cast<const T*>(p.v) + row * p.v_stride + kv_head * d, d, v + position % p.capacity * row_size);
  const int64_t group = p.heads / p.kv_heads, keys = std::min(position + 1, p.capacity), oldest = (position + 1 - keys) % p.capacity;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    attend(static_cast<const T*>(p.q) + row * p.q_stride + head * d, RingRows<Ring>{k, oldest, p.capacity, row_size},
           RingRows<Ring>{v, oldest, p.capacity, row_size}, keys, d, p.scale, static_cast<T*>(p.y) + (row * p.heads + head) * d);
}

}  // namespace

void attention_step_row(const CausalAttentionStep& p, int64_t row, int64_t kv_head) {
  if (p.dtype == DType::bf16)
    p.ring_dtype == DType::bf16 ? step_row<bf16, bf16>(p, row, kv_head) : step_row<bf16, float>(p, row, kv_head);
  else
    p.ring_dtype == DType::bf16 ? step_row<float, bf16>(p, row, kv_head) : step_row<float, float>(p, row, kv_head);
}

}  // namespace based::kernels::cpu::BASED_ISA
