// Work queue of the persistent Hopper kernels for softmax attention. A block that has finished one part of a row takes the next ticket, so
// parts start in a fixed order.
#pragma once
#include "based/kernels/attention/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {

// Work items are (head, part) pairs. Parts are numbered as in find_part(). The queue issues a group of heads_in_cache heads at a time:
// within a group the last parts come first, each for all heads of the group.
struct WorkQueue {
  int* ticket;         // next ticket, in device memory, initially 0
  int parts;           // part numbers per head
  int heads;           // total number of heads
  int heads_in_cache;  // heads of a group, whose operands fit in the L2 cache
};

#if BASED_HAS_WGMMA
// Upper bound of the row of the next part: within a group of heads, rows never increase.
struct RowHint {
  int row = -1, head_group = -1;
};

// Called by a warp. Finds the part of kLength tokens with this number (see find_part()); false: no such part. Searches the rows downwards
// from `last_row` and stores the part's row there.
template <int kLength, bool kSplitKeys>
__device__ __forceinline__ bool find_part_from(const CausalAttention& p, int number, int& last_row, WorkItem& item) {
  const int64_t* start = kSplitKeys ? p.k_start : p.q_start;
  for (int top = last_row; top >= 0; top -= 32) {
    const int row = top - static_cast<int>(threadIdx.x) % 32;
    const int64_t begin = row >= 0 ? start[row] : 0, end = row >= 0 ? start[row + 1] : 0;
    const int first_number = static_cast<int>(begin / kLength) + row;
    const bool contains_part = row >= 0 && first_number <= number && (row + 1 == p.rows || end / kLength + row + 1 > number);
    if (__ballot_sync(~0U, contains_part) == 0) continue;
    if (contains_part) {
      item.q_begin = p.q_start[row], item.k_begin = p.k_start[row];
      item.queries = static_cast<int>(p.q_start[row + 1] - item.q_begin), item.keys = static_cast<int>(p.k_start[row + 1] - item.k_begin);
      item.row = row, item.part = number - first_number, item.heads_per_kv = p.heads / p.kv_heads;
    }
    __syncwarp();
    last_row = warp_uniform(item.row);
    return warp_uniform(item.part * kLength < (kSplitKeys ? item.keys : item.queries)) != 0;
  }
  return false;
}

// Called by a warp. Writes the block's next work item to `item` in shared memory; false: the queue is empty.
template <int kLength, bool kSplitKeys>
__device__ __forceinline__ bool pop_item(const CausalAttention& p, const WorkQueue& work, RowHint& hint, WorkItem& item) {
  while (true) {
    const int ticket = warp_uniform(threadIdx.x % 32 == 0 ? atomicAdd(work.ticket, 1) : 0);
    if (ticket >= work.parts * work.heads) return false;
    const int head_group = ticket / (work.parts * work.heads_in_cache), rest = ticket - head_group * work.parts * work.heads_in_cache;
    const int width = min(work.heads_in_cache, work.heads - head_group * work.heads_in_cache), parts_after = rest / width;
    if (head_group != hint.head_group) hint.head_group = head_group, hint.row = static_cast<int>(p.rows) - 1;
    if (!find_part_from<kLength, kSplitKeys>(p, work.parts - 1 - parts_after, hint.row, item)) continue;
    if (threadIdx.x % 32 == 0) item.head = head_group * work.heads_in_cache + rest - parts_after * width;
    return true;
  }
}
#endif

}  // namespace based::kernels::cuda::detail::causal
