// torch.ops.based_cpp.paged_attention_step: one token of softmax attention over keys in pages of a pool, for many sequences in fixed
// memory.
#pragma once
#include "based/ops/attention/attention_cache.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], slots int64 [rows], positions int64 [rows], the position of each row's
// token in its sequence, from 0 -> [rows, heads, head_dim]. Writes k and v into the slots' pages as keys p = positions[row], attends over
// keys 0 … p; a slot without a page for its new key is idle and gives 0 (kernels/attention/paged_attention.h). No gradients.
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

}  // namespace based::ops
