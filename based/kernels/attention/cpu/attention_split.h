// Distributes decode attention (one token per row) over threads.
#pragma once
#include <algorithm>

#include "based/kernels/common/cpu/parallel.h"

namespace based::kernels::cpu {

// Calls body(row, kv_head) for every row and key head. `keys` is the total number of keys over all rows and only sets the grain size.
template <class Body>
void over_rows_and_heads(int64_t rows, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t keys, Body&& body) {
  // Waking a thread costs a few microseconds, the time of about this many multiplications.
  constexpr int64_t worth_a_thread = 256 * 1024;
  const int64_t cost = std::max<int64_t>(1, keys / rows * (heads / kv_heads) * head_dim * 2);
  parallel_for(rows * kv_heads, std::max<int64_t>(1, worth_a_thread / cost), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) body(item / kv_heads, item % kv_heads);
  });
}

}  // namespace based::kernels::cpu
