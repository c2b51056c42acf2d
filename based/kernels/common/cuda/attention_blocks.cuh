// How attention kernels divide packed rows of queries and keys among thread blocks.
#pragma once
#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/wgmma.cuh"

namespace based::kernels::cuda::detail::attention_blocks {

constexpr float kLog2e = 1.44269504088896341F, kLn2 = 0.693147180559945309F;
constexpr int kMaxTokens = 1 << 29;  // so that positions and their differences fit in 32 bits
constexpr int kAllKeys = 1 << 30;    // a window longer than any row

// The order in which blocks process the parts of `length` tokens of the rows. The numbers of the parts of row r start at
// floor(start[r] / length) + r. A few numbers have no part, but the host need not know the rows' lengths. Consecutive blocks belong to a
// section of `rows_in_cache` rows, whose keys and values fit in the L2 cache. Within a section the parts with the longest loops come first.
// The grid is [sections · parts, rows_in_cache, heads] (z, y, x).
struct Order {
  uint32_t rows, parts;  // parts: part numbers per row, on average, rounded up
  uint32_t rows_in_cache;
  int32_t heads_per_kv;  // query heads per key head
  bool last_first;
};

// Attention: a struct with the members rows, q_tokens, k_tokens, heads, kv_heads and head_dim, and for find_part() q_start and k_start.
template <class Attention>
Order make_order(const Attention& p, int64_t tokens, int length, bool last_first) {
  constexpr int64_t kCacheBytes = 24 << 20, kMaxRows = 0xffff;
  const int64_t parts = ceil_div(tokens / length + p.rows, p.rows);
  const int64_t row_bytes = (p.q_tokens + p.k_tokens) / p.rows * p.kv_heads * p.head_dim * 2 + 1;
  const int64_t rows_in_cache = std::clamp(kCacheBytes / row_bytes, int64_t{1}, std::min(p.rows, kMaxRows));
  return {static_cast<uint32_t>(p.rows), static_cast<uint32_t>(parts), static_cast<uint32_t>(rows_in_cache), p.heads / p.kv_heads,
          last_first};
}
inline bool fits(const Order& o) { return ceil_div(o.rows, o.rows_in_cache) * o.parts <= 0xffff; }
inline dim3 grid_of(const Order& o, int heads) {
  return {static_cast<unsigned>(heads), o.rows_in_cache, static_cast<unsigned>(ceil_div(o.rows, o.rows_in_cache) * o.parts)};
}

// A block's work: one part of one row, for one head.
struct WorkItem {
  int64_t q_begin, k_begin;  // the row's first query and key tokens
  int queries, keys;         // the row's number of queries and keys
  int head, row, part, heads_per_kv;
  // Query i attends to keys up to i + shift().
  __device__ __forceinline__ int shift() const { return keys - queries; }
};

// Finds the part of kLength tokens with this number; false: no such part. Parts divide the rows' keys if kSplitKeys, else their queries.
// Called by all threads. The thread that finds the row shares the offsets that it has loaded, so the block waits for only one memory load.
template <int kLength, bool kSplitKeys, class Attention>
__device__ __forceinline__ bool find_part(const Attention& p, uint32_t number, WorkItem& item) {
  __shared__ int64_t found[4];
  int row = -1;
  for (int64_t base = 0; base < p.rows; base += blockDim.x) {
    const int64_t r = base + threadIdx.x;
    int64_t start[4] = {};
    if (r < p.rows) start[0] = p.q_start[r], start[1] = p.q_start[r + 1], start[2] = p.k_start[r], start[3] = p.k_start[r + 1];
    const auto first_number = [&](int64_t token, int64_t token_row) { return token / kLength + token_row; };
    const bool before = r < p.rows && first_number(start[kSplitKeys ? 2 : 0], r) <= number;
    if (before && (r + 1 == p.rows || first_number(start[kSplitKeys ? 3 : 1], r + 1) > number)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) found[i] = start[i];
    }
    const int count = __syncthreads_count(before);
    row += count;
    if (count < static_cast<int>(blockDim.x)) break;
  }
  if (row < 0) return false;
  item.row = warp_uniform(row);
  item.q_begin = found[0], item.k_begin = found[2];
  item.queries = warp_uniform(static_cast<int>(found[1] - found[0])), item.keys = warp_uniform(static_cast<int>(found[3] - found[2]));
  item.part = warp_uniform(static_cast<int>(number - (found[kSplitKeys ? 2 : 0] / kLength + row)));
  return item.part * kLength < (kSplitKeys ? item.keys : item.queries);
}

// Finds the work item of this block in a grid made by make_order() and grid_of(); false: none.
template <int kLength, bool kSplitKeys, class Attention>
__device__ __forceinline__ bool find_item(const Attention& p, const Order& o, WorkItem& item) {
  const uint32_t section = blockIdx.z / o.parts, part = blockIdx.z - section * o.parts, row = section * o.rows_in_cache + blockIdx.y;
  item.head = static_cast<int>(blockIdx.x), item.heads_per_kv = o.heads_per_kv;
  return row < o.rows && find_part<kLength, kSplitKeys>(p, row * o.parts + (o.last_first ? o.parts - 1 - part : part), item);
}

}  // namespace based::kernels::cuda::detail::attention_blocks
