// One token against keys in pages, in the order of their positions: the same sums as over a ring that holds them all, bit for bit.
#include "based/kernels/cpu/attention_row.h"
#include "based/kernels/cpu/paged_attention_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// The keys or values of one slot and head by position.
template <class T>
struct PagedRows {
  T* data;
  const int64_t* pages;
  int64_t shift, mask, stride;  // position >> shift: entry of `pages`; position & mask: place in the page
  T* operator[](int64_t position) const { return data + (pages[position >> shift] << shift | (position & mask)) * stride; }
};

template <class T>
void step_row(const PagedAttention& p, int64_t row, int64_t kv_head) {
  const int64_t d = p.head_dim, slot = p.slot[row], position = p.position[row], group = p.heads / p.kv_heads;
  const int64_t shift = __builtin_ctzll(static_cast<uint64_t>(p.page_tokens));
  const auto rows_of = [&](void* pages) {
    return PagedRows<T>{static_cast<T*>(pages) + kv_head * d, p.page_table + slot * p.slot_pages, shift, p.page_tokens - 1, p.kv_heads * d};
  };
  const PagedRows<T> k = rows_of(p.k_pages), v = rows_of(p.v_pages);
  write_row(static_cast<const T*>(p.k) + row * p.k_stride + kv_head * d, d, k[position]);
  write_row(static_cast<const T*>(p.v) + row * p.v_stride + kv_head * d, d, v[position]);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    attend(static_cast<const T*>(p.q) + row * p.q_stride + head * d, k, v, position + 1, d, p.scale,
           static_cast<T*>(p.y) + (row * p.heads + head) * d);
}

}  // namespace

void paged_attention_step_row(const PagedAttention& p, int64_t row, int64_t kv_head) {
  p.dtype == DType::bf16 ? step_row<bf16>(p, row, kv_head) : step_row<float>(p, row, kv_head);
}

}  // namespace based::kernels::cpu::BASED_ISA
