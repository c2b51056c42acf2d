// Without torch: the checks of softmax attention, for tensors of LibTorch or of its stable interface.
#pragma once
#include "based/ops/framework/checks.h"

namespace based::ops {

// q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]: shapes, types and devices. Throws Error.
template <class Tensor>
void check_attention_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  require_floating(op, "q", q);
  require_shape(op, "q", q, {-1, -1, -1});
  require(q.size(2) >= 1 && q.size(2) <= 256, op, "head_dim must be 1..256, got ", q.size(2));
  require_like(op, "k", k, q);
  require_like(op, "v", v, q);
  require_shape(op, "k", k, {-1, -1, q.size(2)});
  require_shape(op, "v", v, k.sizes());
  require(k.size(1) >= 1 && q.size(1) % k.size(1) == 0, op, "heads must be a multiple of kv_heads, got ", q.size(1), " and ", k.size(1));
}

// A step over pages, except its slots. Inputs is a struct with the tensors of PagedAttentionStep. Throws Error.
template <class Inputs>
void check_paged_attention(const char* op, const Inputs& in) {
  using ScalarType = decltype(in.q.scalar_type());
  check_attention_heads(op, in.q, in.k, in.v);
  require_shape(op, "k", in.k, {in.q.size(0), -1, -1});
  require_shape(op, "k_pages", in.k_pages, {-1, -1, in.k.size(1), in.k.size(2)});
  require_type(op, "k_pages", in.k_pages, in.q.scalar_type());
  require_shape(op, "v_pages", in.v_pages, in.k_pages.sizes());
  require_type(op, "v_pages", in.v_pages, in.q.scalar_type());
  const int64_t page_tokens = in.k_pages.size(1);
  require(page_tokens >= 1 && (page_tokens & (page_tokens - 1)) == 0, op, "a page must hold a power of two of tokens, got ", page_tokens);
  require_type(op, "page_table", in.page_table, ScalarType::Long);
  require_shape(op, "page_table", in.page_table, {-1, -1});
  require_type(op, "positions", in.positions, ScalarType::Long);
  require_shape(op, "positions", in.positions, {in.q.size(0)});
}

}  // namespace based::ops
