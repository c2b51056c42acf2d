// Decode attention of one token over keys in pages, in the order of their positions. The output has the same bits as that of a ring that
// holds all keys.
#include "based/kernels/attention/cpu/attention_row.h"
#include "based/kernels/attention/cpu/paged_attention_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// The keys or values of one slot and head, indexed by position.
template <class T>
struct PagedRows {
  T* data;
  const int64_t* pages;
  int64_t shift, mask, stride;  // position >> shift: index into `pages`; position & mask: token within the page
  T* operator[](int64_t position) const { return data + (pages[position >> shift] << shift | (position & mask)) * stride; }
};

template <class T>
void step_row(const PagedAttention& p, int64_t row, int64_t kv_head) {
  const int64_t d = p.head_dim, slot = p.slot[row], position = p.position[row], group = p.heads / p.kv_heads;
  const int64_t shift = __builtin_ctzll(static_cast<uint64_t>(p.page_tokens));
  const auto paged_rows = [&](void* pages) {
    return PagedRows<T>{static_cast<T*>(pages) + kv_head * d, p.page_table + slot * p.slot_pages, shift, p.page_tokens - 1, p.kv_heads * d};
  };
  const PagedRows<T> k = paged_rows(p.k_pages), v = paged_rows(p.v_pages);
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
