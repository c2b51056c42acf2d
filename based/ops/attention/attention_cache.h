// Keys and values of softmax attention that later tokens attend over.
#pragma once
#include "based/runtime/torch.h"

namespace based::ops {

// A ring k, v [slots, capacity, kv_heads, head_dim], key p of a slot at p mod capacity; a cache of all keys is a ring that never wraps.
// With a page table: pages [pages, page_tokens, kv_heads, head_dim] of a pool, page_tokens a power of two.
struct AttentionCache {
  at::Tensor k, v;
  at::Tensor page_table = {};  // int64 [slots, slot_pages], −1: none; undefined: a ring
};

}  // namespace based::ops
