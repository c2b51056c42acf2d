#include "based/kernels/attention/paged_attention.h"

#include <cstring>

#include "based/kernels/attention/cpu/attention_split.h"
#include "based/kernels/attention/cpu/paged_attention_simd.h"

namespace based::kernels::cpu {
namespace {

Status check(const PagedAttention& p) {
  if (p.heads < 1 || p.kv_heads < 1 || p.heads % p.kv_heads != 0)
    return {"paged_attention: heads must be a multiple of kv_heads, both at least 1"};
  if (p.head_dim < 1 || p.head_dim > 256) return {"paged_attention: head_dim must be 1..256"};
  if (p.page_tokens < 1 || (p.page_tokens & (p.page_tokens - 1)) != 0) return {"paged_attention: page_tokens must be a power of two"};
  if (!p.q || !p.k || !p.v || !p.y || !p.page_table || !p.position || !p.slot || (p.pages > 0 && (!p.k_pages || !p.v_pages)))
    return {"paged_attention: q, k, v, y, both pools, page_table, position and slot must be given"};
  for (int64_t row = 0; row < p.rows; ++row)
    if (p.slot[row] < 0 || p.position[row] < 0) return {"paged_attention: slots and positions must not be negative"};
  return {};
}

const int64_t* table_row(const PagedAttention& p, int64_t row) { return p.page_table + p.slot[row] * p.slot_pages; }

bool idle(const PagedAttention& p, int64_t row) {
  const int64_t page = p.position[row] / p.page_tokens;
  return page >= p.slot_pages || table_row(p, row)[page] < 0;
}

bool pages_exist(const PagedAttention& p, int64_t row) {
  for (int64_t i = 0; i <= p.position[row] / p.page_tokens; ++i)
    if (table_row(p, row)[i] < 0 || table_row(p, row)[i] >= p.pages) return false;
  return true;
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttention&) { return 0; }

Status paged_attention_step(const PagedAttention& p, void*) {
  if (p.rows == 0) return {};
  if (Status status = check(p); !status.ok()) return status;
  int64_t keys = 0;
  for (int64_t row = 0; row < p.rows; ++row) {
    if (idle(p, row)) continue;
    if (!pages_exist(p, row)) return {"paged_attention: page_table must name pages of the pool for all keys of a slot"};
    keys += p.position[row] + 1;
  }
  over_rows_and_heads(p.rows, p.heads, p.kv_heads, p.head_dim, keys, [&](int64_t row, int64_t kv_head) {
    if (!idle(p, row)) {
      BASED_DISPATCH(paged_attention_step_row, p, row, kv_head);
      return;
    }
    const int64_t size = p.heads / p.kv_heads * p.head_dim * dtype_size(p.dtype);
    std::memset(static_cast<char*>(p.y) + (row * p.kv_heads + kv_head) * size, 0, static_cast<size_t>(size));
  });
  return {};
}

namespace {
const DefineLaunchers<PagedAttentionLaunchers> kPagedAttentionLaunchers(Device::cpu, {.scratch = paged_attention_scratch,
                                                                                      .step = on_cpu<paged_attention_step>});
}

}  // namespace based::kernels::cpu
