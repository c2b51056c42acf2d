#include "based/kernels/taylor_attention.h"

#include <algorithm>

#include "based/kernels/cpu/parallel.h"
#include "based/kernels/cpu/taylor_attention_simd.h"

namespace based::kernels::cpu {
namespace {

constexpr int64_t cache_line = 64;

// What every call needs; nullptr where nothing is wrong.
const char* wrong_with(const TaylorAttention& a) {
  if (a.feature_dim < 1 || a.feature_dim > 64) return "taylor_attention: feature_dim must be 1..64";
  if (a.heads < 1 || a.head_dim < 1) return "taylor_attention: heads and head_dim must be at least 1";
  if (a.tokens < 0 || a.rows < 0) return "taylor_attention: tokens and rows must not be negative";
  if ((a.kv_state == nullptr) != (a.k_state == nullptr)) return "taylor_attention: kv_state and k_state go together";
  if (a.tokens > 0 && (!a.q || !a.k || !a.v || !a.y)) return "taylor_attention: q, k, v or y is null";
  return nullptr;
}

const char* wrong_with_rows(const TaylorAttention& a) {
  if (const char* what = wrong_with(a)) return what;
  if (a.rows == 0) return a.tokens == 0 ? nullptr : "taylor_attention: tokens without a row";
  if (!a.row_start) return "taylor_attention: row_start is null";
  if (a.row_start[0] != 0 || a.row_start[a.rows] != a.tokens) return "taylor_attention: row_start must go from 0 to tokens";
  for (int64_t r = 0; r < a.rows; ++r)
    if (a.row_start[r] > a.row_start[r + 1]) return "taylor_attention: row_start must not decrease";
  return nullptr;
}

// How the heads of all rows are dealt out: `items` groups of `together` heads, the last group of a row maybe smaller.
struct Deal {
  int64_t together, groups, items, threads;

  explicit Deal(const TaylorAttention& a) {
    // States that are worked on together should stay in the second cache. One row is cut evenly; of many, of different lengths, there
    // should be several items a thread.
    constexpr int64_t cache_bytes = 512 << 10;
    const int64_t state_bytes = packed_features(a.feature_dim) * (a.head_dim + 1) * 4, parts = max_threads() * (a.rows == 1 ? 1 : 4);
    together = std::clamp((a.rows * a.heads + parts - 1) / parts, int64_t{1},
                          std::clamp(cache_bytes / state_bytes, int64_t{1}, max_heads_together));
    if (together > a.heads) together = a.heads;
    groups = (a.heads + together - 1) / together;
    items = a.rows * groups;
    threads = std::min<int64_t>(items, max_threads());
  }
  Heads heads(int64_t item, const TaylorAttention& a) const {
    const int64_t begin = item % groups * together;
    return {begin, std::min<int64_t>(begin + together, a.heads)};
  }
};

// A thread's share of the scratch, and all of it with room to align its start.
int64_t share(int64_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }
int64_t total(const Deal& deal, int64_t bytes) { return deal.threads * share(bytes) + cache_line; }
char* aligned(void* scratch) {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch) + cache_line - 1) / cache_line * cache_line);
}

}  // namespace

int64_t taylor_attention_scratch(const TaylorAttention& a) {
  if (wrong_with_rows(a)) return 0;
  const Deal deal(a);
  return total(deal, BASED_DISPATCH(taylor_forward_scratch, a, deal.together));
}

Status taylor_attention_forward(const TaylorAttention& a, void* scratch) {
  if (const char* what = wrong_with_rows(a)) return {what};
  const Deal deal(a);
  const int64_t bytes = share(BASED_DISPATCH(taylor_forward_scratch, a, deal.together));
  parallel_items(deal.items, [&](int64_t item, int64_t thread) {
    BASED_DISPATCH(taylor_forward, a, item / deal.groups, deal.heads(item, a), aligned(scratch) + thread * bytes);
  });
  return {};
}

int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward& b) {
  if (wrong_with_rows(b.forward)) return 0;
  const Deal deal(b.forward);
  return total(deal, BASED_DISPATCH(taylor_backward_scratch, b, deal.together));
}

Status taylor_attention_backward(const TaylorAttentionBackward& b, void* scratch) {
  const TaylorAttention& a = b.forward;
  if (const char* what = wrong_with_rows(a)) return {what};
  if (a.tokens > 0 && (!a.denominator || !b.grad_y || !b.grad_q || !b.grad_k || !b.grad_v))
    return {"taylor_attention_backward: denominator, grad_y, grad_q, grad_k or grad_v is null"};
  if ((b.initial_kv_state == nullptr) != (b.initial_k_state == nullptr) || (b.grad_kv_state == nullptr) != (b.grad_k_state == nullptr) ||
      (b.grad_initial_kv_state == nullptr) != (b.grad_initial_k_state == nullptr))
    return {"taylor_attention_backward: kv and k states go together"};
  const Deal deal(a);
  const int64_t bytes = share(BASED_DISPATCH(taylor_backward_scratch, b, deal.together));
  parallel_items(deal.items, [&](int64_t item, int64_t thread) {
    BASED_DISPATCH(taylor_backward, b, item / deal.groups, deal.heads(item, a), aligned(scratch) + thread * bytes);
  });
  return {};
}

Status taylor_attention_step(const TaylorAttention& a) {
  if (const char* what = wrong_with(a)) return {what};
  if (a.tokens != a.rows) return {"taylor_attention_step: one token a row"};
  if (a.rows > 0 && !a.kv_state) return {"taylor_attention_step: kv_state is null"};
  // A thread should have some 64 KiB of state to go through, or starting it costs more than it saves.
  const int64_t state_bytes = packed_features(a.feature_dim) * a.head_dim * 4, grain = 1 + 65536 / state_bytes;
  parallel_for(a.rows * a.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) BASED_DISPATCH(taylor_step, a, item / a.heads, item % a.heads);
  });
  return {};
}

}  // namespace based::kernels::cpu
