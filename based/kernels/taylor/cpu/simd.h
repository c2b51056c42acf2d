// The parts of CPU Taylor attention that are compiled once an instruction set.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cpu {

// A work item is heads [begin, end) of a row, which are processed together chunk by chunk: the heads of a token are adjacent in memory,
// while the tokens of a head are a page apart. A head's results do not depend on the other heads of its item.
constexpr int64_t max_heads_per_item = 16;
struct Heads {
  int64_t begin, end;
};

// The scratch functions return the bytes that a thread needs for items of `heads` heads; the others process one item.
BASED_DECLARE_SIMD(int64_t, taylor_forward_scratch, (const TaylorAttention&, int64_t heads))
BASED_DECLARE_SIMD(void, taylor_forward, (const TaylorAttention&, int64_t row, Heads, void* scratch))
BASED_DECLARE_SIMD(int64_t, taylor_backward_scratch, (const TaylorAttentionBackward&, int64_t heads))
BASED_DECLARE_SIMD(void, taylor_backward, (const TaylorAttentionBackward&, int64_t row, Heads, void* scratch))
// Processes one token of one head of one row.
BASED_DECLARE_SIMD(void, taylor_step, (const TaylorAttention&, int64_t row, int64_t head))

}  // namespace based::kernels::cpu
