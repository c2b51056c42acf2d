#include "based/ops/paged_attention.h"

#include "based/ops/arguments.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "paged_attention_step";

void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache, const Tensor& positions, const Tensor& slots) {
  check_attention_heads(kOp, q, k, v);
  require_shape(kOp, "k", k, {q.size(0), -1, -1});
  require_shape(kOp, "k_pages", cache.k, {-1, -1, k.size(1), k.size(2)});
  require_type(kOp, "k_pages", cache.k, q.scalar_type());
  require_shape(kOp, "v_pages", cache.v, cache.k.sizes());
  require_type(kOp, "v_pages", cache.v, q.scalar_type());
  const int64_t page_tokens = cache.k.size(1);
  require(page_tokens >= 1 && (page_tokens & (page_tokens - 1)) == 0, kOp, "a page must hold a power of two of tokens, got ", page_tokens);
  require_type(kOp, "page_table", cache.page_table, at::kLong);
  require_shape(kOp, "page_table", cache.page_table, {-1, -1});
  require_type(kOp, "positions", positions, at::kLong);
  require_shape(kOp, "positions", positions, {q.size(0)});
  for (const Tensor& tensor : {cache.k, cache.v, cache.page_table}) require(tensor.is_contiguous(), kOp, "the state must be contiguous");
  require_slots(kOp, slots, q.size(0), cache.page_table.size(0));
}

Tensor step_reference(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_pages, Tensor v_pages, const Tensor& page_table,
                      const Tensor& positions, const Tensor& slots, double scale) {
  return paged_attention_step_reference(q, k, v, {k_pages, v_pages, page_table}, positions, slots, scale);
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_pages, Tensor v_pages, const Tensor& page_table,
                 const Tensor& positions, const Tensor& slots, double) {
  check(q, k, v, {k_pages, v_pages, page_table}, positions, slots);
  return at::empty(q.sizes(), q.options());
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_pages, Tensor v_pages, const Tensor& page_table,
                const Tensor& positions, const Tensor& slots, double scale) {
  return paged_attention_step_with({kernels::cpu::paged_attention_scratch, kernels::cpu::paged_attention_step}, q, k, v,
                                   {k_pages, v_pages, page_table}, positions, slots, scale);
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_pages, Tensor v_pages, const Tensor& page_table,
                     const Tensor& positions, const Tensor& slots, double scale) {
  require_no_gradient(kOp, {q, k, v, k_pages, v_pages});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return paged_attention_step(q, k, v, {k_pages, v_pages, page_table}, positions, slots, scale);
}

}  // namespace

Tensor paged_attention_step_reference(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache,
                                      const Tensor& positions, const Tensor& slots, double scale) {
  check(q, k, v, cache, positions, slots);
  const at::ScalarType type = sum_type(q);
  const int64_t page_tokens = cache.k.size(1), kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Tensor keys_of_pool = cache.k.flatten(0, 1), values_of_pool = cache.v.flatten(0, 1);
  Tensor y = at::zeros(q.sizes(), q.options());
  // Row by row, and sums by elementwise operators: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), written = positions[row].item<int64_t>();
    const Tensor pages = cache.page_table[slot];
    if (written / page_tokens >= pages.size(0) || pages[written / page_tokens].item<int64_t>() < 0) continue;
    const Tensor order = at::arange(written + 1, slots.options());
    const Tensor places =
        pages.index_select(0, order.div(page_tokens, "floor")).mul(page_tokens).add(order.remainder(page_tokens));  // in the pool
    keys_of_pool[places[written].item<int64_t>()].copy_(k[row]);
    values_of_pool[places[written].item<int64_t>()].copy_(v[row]);
    const Tensor keys = keys_of_pool.index_select(0, places).to(type).unsqueeze(2);      // [keys, kv_heads, 1, head_dim]
    const Tensor values = values_of_pool.index_select(0, places).to(type).unsqueeze(2);  // likewise
    const Tensor query = q[row].to(type).reshape({kv_heads, group, -1});
    const Tensor weights = ((query * keys).sum(-1) * scale).softmax(0);  // [keys, kv_heads, group]
    y[row].copy_((weights.unsqueeze(-1) * values).sum(0).reshape(q[row].sizes()));
  }
  return y;
}

Tensor paged_attention_step_with(const PagedAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionCache& cache, const Tensor& positions, const Tensor& slots, double scale) {
  if (!uses_kernel(kOp, q)) return paged_attention_step_reference(q, k, v, cache, positions, slots, scale);
  check(q, k, v, cache, positions, slots);
  const Tensor query = with_packed_heads(q), key = with_packed_heads(k), value = with_packed_heads(v), slot = slots.contiguous(),
               position = positions.contiguous();
  const Tensor y = at::empty(q.sizes(), q.options());
  kernels::PagedAttention to;
  to.q = query.const_data_ptr();
  to.k = key.const_data_ptr();
  to.v = value.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.k_pages = cache.k.mutable_data_ptr();
  to.v_pages = cache.v.mutable_data_ptr();
  to.page_table = cache.page_table.const_data_ptr<int64_t>();
  to.position = position.const_data_ptr<int64_t>();
  to.slot = slot.const_data_ptr<int64_t>();
  to.rows = q.size(0), to.pages = cache.k.size(0), to.page_tokens = cache.k.size(1), to.slot_pages = cache.page_table.size(1);
  to.q_stride = query.stride(0), to.k_stride = key.stride(0), to.v_stride = value.stride(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q);
  const Tensor scratch = scratch_memory(table.scratch(to), q);
  require_ok(table.step(to, scratch.mutable_data_ptr()));
  return y;
}

Tensor paged_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache, const Tensor& positions,
                            const Tensor& slots, double scale) {
  static const auto op = find_operator<decltype(step_reference)>("based::paged_attention_step");
  return op.call(q, k, v, cache.k, cache.v, cache.page_table, positions, slots, scale);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "paged_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor page_table, Tensor positions, "
      "Tensor slots, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) { m.impl("paged_attention_step", step_reference); }
TORCH_LIBRARY_IMPL(based, CPU, m) { m.impl("paged_attention_step", step_cpu); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("paged_attention_step", step_meta); }
TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("paged_attention_step", step_autograd); }

}  // namespace
}  // namespace based::ops
