#include "based/kernels/taylor/taylor.h"

#include <algorithm>
#include <limits>

#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/taylor/cpu/simd.h"

namespace based::kernels::cpu {
namespace {

// Checks the arguments of every call; returns the error, or nullptr.
const char* validate(const TaylorAttention& a) {
  if (a.feature_dim < 1 || a.feature_dim > 64) return "taylor_attention: feature_dim must be 1..64";
  if (a.heads < 1 || a.head_dim < 1) return "taylor_attention: heads and head_dim must be at least 1";
  if (a.tokens < 0 || a.rows < 0) return "taylor_attention: tokens and rows must not be negative";
  if ((a.kv_state == nullptr) != (a.k_state == nullptr)) return "taylor_attention: kv_state and k_state go together";
  if (a.tokens > 0 && (!a.q || !a.k || !a.v || !a.y)) return "taylor_attention: q, k, v or y is null";
  return nullptr;
}

// Checks also the rows.
const char* validate_rows(const TaylorAttention& a) {
  if (const char* error = validate(a)) return error;
  if (a.rows == 0) return a.tokens == 0 ? nullptr : "taylor_attention: tokens without a row";
  if (!a.row_start) return "taylor_attention: row_start is null";
  if (a.row_start[0] != 0 || a.row_start[a.rows] != a.tokens) return "taylor_attention: row_start must go from 0 to tokens";
  for (int64_t r = 0; r < a.rows; ++r)
    if (a.row_start[r] > a.row_start[r + 1]) return "taylor_attention: row_start must not decrease";
  return nullptr;
}

// Splits the heads of all rows into work items of heads_per_item heads; the last item of a row may have fewer.
struct WorkSplit {
  int64_t heads_per_item, items_per_row, items, threads;

  explicit WorkSplit(const TaylorAttention& a) {
    // The states of an item, and the inputs and outputs of its heads for a chunk, should stay in the L2 cache. A single row is split evenly
    // among the threads; rows, whose lengths differ, into several items a thread.
    constexpr int64_t cache_bytes = 576 << 10, chunk = 48;
    const int64_t head_bytes = (packed_features(a.feature_dim) * (a.head_dim + 1) + 2 * chunk * (a.feature_dim + a.head_dim)) * 4;
    const int64_t parts = max_threads() * (a.rows == 1 ? 1 : 4);
    heads_per_item = std::clamp((a.rows * a.heads + parts - 1) / parts, int64_t{1},
                                std::clamp(cache_bytes / head_bytes, int64_t{1}, max_heads_per_item));
    if (heads_per_item > a.heads) heads_per_item = a.heads;
    items_per_row = (a.heads + heads_per_item - 1) / heads_per_item;
    items = a.rows * items_per_row;
    threads = std::min<int64_t>(items, max_threads());
  }
  Heads heads(int64_t item, const TaylorAttention& a) const {
    const int64_t begin = item % items_per_row * heads_per_item;
    return {begin, std::min<int64_t>(begin + heads_per_item, a.heads)};
  }
};

// The scratch of all threads, with room to align the start.
int64_t total_bytes(const WorkSplit& split, int64_t bytes) { return split.threads * whole_cache_lines(bytes) + cache_line; }

}  // namespace

int64_t taylor_attention_scratch(const TaylorAttention& a) {
  if (validate_rows(a)) return 0;
  const WorkSplit split(a);
  return total_bytes(split, BASED_DISPATCH(taylor_forward_scratch, a, split.heads_per_item));
}

Status taylor_attention_forward(const TaylorAttention& a, void* scratch) {
  if (const char* error = validate_rows(a)) return {error};
  const WorkSplit split(a);
  const int64_t bytes = whole_cache_lines(BASED_DISPATCH(taylor_forward_scratch, a, split.heads_per_item));
  parallel_items(split.items, [&](int64_t item, int64_t thread) {
    BASED_DISPATCH(taylor_forward, a, item / split.items_per_row, split.heads(item, a), next_cache_line(scratch) + thread * bytes);
  });
  return {};
}

int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward& b) {
  if (validate_rows(b.forward)) return 0;
  const WorkSplit split(b.forward);
  return total_bytes(split, BASED_DISPATCH(taylor_backward_scratch, b, split.heads_per_item));
}

Status taylor_attention_backward(const TaylorAttentionBackward& b, void* scratch) {
  const TaylorAttention& a = b.forward;
  if (const char* error = validate_rows(a)) return {error};
  if (a.tokens > 0 && (!a.denominator || !b.grad_y || !b.grad_q || !b.grad_k || !b.grad_v))
    return {"taylor_attention_backward: denominator, grad_y, grad_q, grad_k or grad_v is null"};
  if ((b.initial_kv_state == nullptr) != (b.initial_k_state == nullptr) || (b.grad_kv_state == nullptr) != (b.grad_k_state == nullptr) ||
      (b.grad_initial_kv_state == nullptr) != (b.grad_initial_k_state == nullptr))
    return {"taylor_attention_backward: kv and k states go together"};
  const WorkSplit split(a);
  const int64_t bytes = whole_cache_lines(BASED_DISPATCH(taylor_backward_scratch, b, split.heads_per_item));
  parallel_items(split.items, [&](int64_t item, int64_t thread) {
    BASED_DISPATCH(taylor_backward, b, item / split.items_per_row, split.heads(item, a), next_cache_line(scratch) + thread * bytes);
  });
  return {};
}

Status taylor_attention_step(const TaylorAttention& a) {
  if (const char* error = validate(a)) return {error};
  if (a.tokens != a.rows) return {"taylor_attention_step: one token a row"};
  if (a.rows > 0 && !a.kv_state) return {"taylor_attention_step: kv_state is null"};
  // A thread should process at least some 64 KiB of state, or starting it costs more time than it saves.
  const int64_t state_bytes = packed_features(a.feature_dim) * a.head_dim * 4, grain = 1 + 65536 / state_bytes;
  parallel_for(a.rows * a.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) BASED_DISPATCH(taylor_step, a, item / a.heads, item % a.heads);
  });
  return {};
}

namespace {
const DefineLaunchers<TaylorAttentionLaunchers> kTaylorAttentionLaunchers(Device::cpu,
                                                                          {.forward_scratch = taylor_attention_scratch,
                                                                           .forward = on_cpu<taylor_attention_forward>,
                                                                           .backward_scratch = taylor_attention_backward_scratch,
                                                                           .backward = on_cpu<taylor_attention_backward>,
                                                                           .takes_strides = nullptr,
                                                                           .step = on_cpu<taylor_attention_step>,
                                                                           .step_head_dim = std::numeric_limits<int64_t>::max(),
                                                                           .step_scales = false,
                                                                           .step_tokens = nullptr});
}

}  // namespace based::kernels::cpu
