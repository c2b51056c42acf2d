#include "based/ops/attention/paged_attention.h"

#include "based/kernels/attention/paged_attention.h"
#include "based/ops/attention/attention_arguments.h"
#include "based/ops/attention/causal_attention.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

void check(const PagedAttentionStep& in) {
  constexpr const char* op = "paged_attention_step";
  check_paged_attention(op, in);
  require_state_slots(op, {in.page_table, in.k_pages, in.v_pages}, in.slots, in.q.size(0));
}

Tensor step_reference(const PagedAttentionStep& in) {
  const auto& [q, k, v, k_pages, v_pages, page_table, positions, slots, scale] = in;
  check(in);
  const at::ScalarType type = sum_type(q);
  const int64_t page_tokens = k_pages.size(1), kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Tensor keys_of_pool = k_pages.flatten(0, 1), values_of_pool = v_pages.flatten(0, 1);
  Tensor y = at::zeros(q.sizes(), q.options());
  // Row by row, and sums by elementwise operators: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), written = positions[row].item<int64_t>();
    const Tensor pages = page_table[slot];
    if (written / page_tokens >= pages.size(0) || pages[written / page_tokens].item<int64_t>() < 0) continue;
    const Tensor order = at::arange(written + 1, slots.options());
    const Tensor places =
        pages.index_select(0, order.div(page_tokens, "floor")).mul(page_tokens).add(order.remainder(page_tokens));  // in the pool
    keys_of_pool[places[written].item<int64_t>()].copy_(k[row]);
    values_of_pool[places[written].item<int64_t>()].copy_(v[row]);
    const Tensor keys = keys_of_pool.index_select(0, places).to(type).unsqueeze(2);      // [keys, kv_heads, 1, head_dim]
    const Tensor values = values_of_pool.index_select(0, places).to(type).unsqueeze(2);  // the same
    const Tensor query = q[row].to(type).reshape({kv_heads, group, -1});
    const Tensor weights = ((query * keys).sum(-1) * scale).softmax(0);  // [keys, kv_heads, group]
    y[row].copy_((weights.unsqueeze(-1) * values).sum(0).reshape(q[row].sizes()));
  }
  return y;
}

Tensor step_meta(const PagedAttentionStep& in) {
  check(in);
  return at::empty(in.q.sizes(), in.q.options());
}

Tensor step(const PagedAttentionStep& in) {
  const auto& [q, k, v, k_pages, v_pages, page_table, positions, slots, scale] = in;
  const auto* table = launchers_for<kernels::PagedAttentionLaunchers>("paged_attention_step", q);
  if (table == nullptr) return step_reference(in);
  check(in);
  const Tensor query = with_packed_heads(q), key = with_packed_heads(k), value = with_packed_heads(v), slot = slots.contiguous(),
               position = positions.contiguous();
  const Tensor y = at::empty(q.sizes(), q.options());
  kernels::PagedAttention to;
  to.q = query.const_data_ptr();
  to.k = key.const_data_ptr();
  to.v = value.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.k_pages = k_pages.mutable_data_ptr();
  to.v_pages = v_pages.mutable_data_ptr();
  to.page_table = page_table.const_data_ptr<int64_t>();
  to.position = position.const_data_ptr<int64_t>();
  to.slot = slot.const_data_ptr<int64_t>();
  to.rows = q.size(0), to.pages = k_pages.size(0), to.page_tokens = k_pages.size(1), to.slot_pages = page_table.size(1);
  to.q_stride = query.stride(0), to.k_stride = key.stride(0), to.v_stride = value.stride(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q);
  const Tensor scratch = scratch_memory(table->scratch(to), q);
  require_ok(table->step(to, scratch.mutable_data_ptr(), queue_of(q)));
  return y;
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<PagedAttentionStep>(m).reference<step_reference>().meta<step_meta>().kernel<step>().without_gradient();
}

}  // namespace

Tensor paged_attention_step_reference(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache,
                                      const Tensor& positions, const Tensor& slots, double scale) {
  return step_reference({q, k, v, cache.k, cache.v, cache.page_table, positions, slots, scale});
}

Tensor paged_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache, const Tensor& positions,
                            const Tensor& slots, double scale) {
  return call(PagedAttentionStep{q, k, v, cache.k, cache.v, cache.page_table, positions, slots, scale});
}

}  // namespace based::ops
