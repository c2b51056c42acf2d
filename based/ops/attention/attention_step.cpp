#include "based/ops/attention/attention_step.h"

#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/paged_attention.h"
#include "based/ops/attention/rotary_attention_step.h"

namespace based::ops {

Tensor attention_step(Tensor qkv, AttentionCache cache, const Tensor& positions, const Tensor& slots, double scale,
                      const Rotation& rotation) {
  const bool in_pages = cache.page_table.defined();
  if (!in_pages && rotation.dim > 0 && !rotation.interleaved)
    return rotary_attention_step(qkv, cache.k, cache.v, positions, slots, scale, rotation.dim, rotation.base);
  if (rotation.dim > 0) rotary_(qkv, positions, rotation);
  const auto [q, k, v] = columns_of_heads("attention_step", qkv, cache.k);
  if (in_pages) return paged_attention_step(q, k, v, cache, positions, slots, scale);
  return causal_attention_step(q, k, v, cache.k, cache.v, positions, slots, scale);
}

}  // namespace based::ops
