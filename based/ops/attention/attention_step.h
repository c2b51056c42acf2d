// One token's softmax attention over a cache of keys and values, in a ring or in pages.
#pragma once
#include "based/ops/attention/attention_cache.h"
#include "based/ops/attention/rotary.h"

namespace based::ops {

// One token for each slot: qkv [rows, (heads + 2 kv_heads)·head_dim], the output of a joint projection, which is overwritten; positions
// int64 [rows], the position of each token in its sequence, from 0; slots int64 [rows], none twice. Rotates queries and keys by `rotation`
// (dim 0: not), writes keys and values into the cache, and lets the queries attend over the keys of their slots: [rows, heads, head_dim].
// No gradients.
Tensor attention_step(Tensor qkv, AttentionCache cache, const Tensor& positions, const Tensor& slots, double scale,
                      const Rotation& rotation);

}  // namespace based::ops
