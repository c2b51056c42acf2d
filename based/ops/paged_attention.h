// torch.ops.based.paged_attention_step: one token of softmax attention over keys in pages of a pool, for many sequences in fixed memory.
#pragma once
#include "based/kernels/paged_attention.h"
#include "based/ops/attention_cache.h"
#include "based/ops/operator.h"

namespace based::ops {

// q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], slots int64 [rows], positions int64 [rows], those of the rows' tokens in
// their sequences, from 0 -> [rows, heads, head_dim]. Writes k and v into the slots' pages as keys p = positions[row], attends over keys 0
// … p; a slot without a page for its new key is idle and gives 0 (kernels/paged_attention.h). No gradients.
Tensor paged_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache, const Tensor& positions,
                            const Tensor& slots, double scale);
Tensor paged_attention_step_reference(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCache& cache,
                                      const Tensor& positions, const Tensor& slots, double scale);

// The operator.
struct PagedAttentionStep {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& k_pages;
  const Tensor& v_pages;
  const Tensor& page_table;
  const Tensor& positions;
  const Tensor& slots;
  double scale;
  BASED_OPERATOR("paged_attention_step -> y", q, k, v, written(k_pages), written(v_pages), page_table, positions, slots, scale)
};

// With a device's kernels.
struct PagedAttentionKernels {
  int64_t (*scratch)(const kernels::PagedAttention&);
  kernels::Status (*step)(const kernels::PagedAttention&, void* scratch);
};
Tensor paged_attention_step_with(const PagedAttentionKernels& table, const PagedAttentionStep& in);

}  // namespace based::ops
