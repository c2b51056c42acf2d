// Inside of based/ops: the ATen forms of Taylor attention, any floating type.
#pragma once
#include "based/ops/taylor_attention.h"

namespace based::ops {

struct TaylorForward {
  Tensor y, kv_state, k_state;
  Tensor denominator;  // [tokens, heads]
};

TaylorForward taylor_attention_chunked(const TaylorAttention& in);
// Without the scale.
Tensor taylor_attention_step_reference(const TaylorAttentionStep& in);

}  // namespace based::ops
