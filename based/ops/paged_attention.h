// torch.ops.based.paged_attention_step: one token of softmax attention over keys in pages of a pool, for many texts in fixed memory.
#pragma once
#include "based/kernels/paged_attention.h"
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

struct PagedCache {
  Tensor k, v;        // [pages, page_tokens, kv_heads, head_dim], of the activations' type; page_tokens is a power of two
  Tensor page_table;  // int64 [slots, slot_pages]; −1: none
  Tensor position;    // int64 [slots], keys written
};

// q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], slots int64 [rows] -> [rows, heads, head_dim]. Writes k and v into the
// slots' pages, advances position, attends over all keys of each slot; a slot without a page for its new key is idle and gives 0
// (kernels/paged_attention.h). No gradients.
Tensor paged_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const PagedCache& cache, const Tensor& slots, double scale);
Tensor paged_attention_step_reference(const Tensor& q, const Tensor& k, const Tensor& v, const PagedCache& cache, const Tensor& slots,
                                      double scale);

// Inside of based/ops: by these kernels, on the device that they are for.
struct PagedAttentionKernels {
  int64_t (*scratch)(const kernels::PagedAttention&);
  kernels::Status (*step)(const kernels::PagedAttention&, void* scratch);
};
Tensor paged_attention_step_with(const PagedAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const PagedCache& cache, const Tensor& slots, double scale);

}  // namespace based::ops
