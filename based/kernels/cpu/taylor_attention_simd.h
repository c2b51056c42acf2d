// The parts of CPU Taylor attention that are compiled once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/taylor_attention.h"

namespace based::kernels::cpu {

// Heads [begin, end) of a row are worked on together, chunk by chunk: the heads of a token lie side by side in memory, the tokens of a head
// a page apart. A head's results do not depend on which others are with it.
constexpr int64_t max_heads_together = 16;
struct Heads {
  int64_t begin, end;
};

// Bytes of scratch that a thread needs for `heads` heads together, and the work on them.
BASED_DECLARE_SIMD(int64_t, taylor_forward_scratch, (const TaylorAttention&, int64_t heads))
BASED_DECLARE_SIMD(void, taylor_forward, (const TaylorAttention&, int64_t row, Heads, void* scratch))
BASED_DECLARE_SIMD(int64_t, taylor_backward_scratch, (const TaylorAttentionBackward&, int64_t heads))
BASED_DECLARE_SIMD(void, taylor_backward, (const TaylorAttentionBackward&, int64_t row, Heads, void* scratch))
// One token of one head of one row.
BASED_DECLARE_SIMD(void, taylor_step, (const TaylorAttention&, int64_t row, int64_t head))

}  // namespace based::kernels::cpu
