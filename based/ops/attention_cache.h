// Keys and values of softmax attention, wherever they lie, and one token's attention over them.
#pragma once
#include "based/ops/rotary.h"
#include "based/ops/torch.h"

namespace based::ops {

// A ring k, v [slots, capacity, kv_heads, head_dim], key p of a slot at p mod capacity; a cache that holds all keys is one that never
// closes. With a page table: pages [pages, page_tokens, kv_heads, head_dim] of a pool, page_tokens a power of two.
struct AttentionCache {
  Tensor k, v;
  Tensor page_table = {};  // int64 [slots, slot_pages], −1: none; undefined: a ring
};

// One token for each slot: qkv [rows, (heads + 2 kv_heads)·head_dim], the output of a joint projection, which is used up; positions int64
// [rows], those of the tokens in their sequences, from 0; slots int64 [rows], none twice. Queries and keys are rotated by `rotation` (dim
// 0: not), keys and values go into the cache, and the queries attend over what it holds of their slots: [rows, heads, head_dim]. No
// gradients.
Tensor attention_step(Tensor qkv, AttentionCache cache, const Tensor& positions, const Tensor& slots, double scale,
                      const Rotation& rotation);

}  // namespace based::ops
