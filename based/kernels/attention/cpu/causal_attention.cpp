#include "based/kernels/attention/causal_attention.h"

#include <algorithm>

#include "based/kernels/attention/cpu/attention_split.h"
#include "based/kernels/attention/cpu/causal_simd.h"
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"

namespace based::kernels::cpu {
namespace {

constexpr int32_t max_head_dim = 256;

Status check_heads(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
    return {"causal_attention: heads must be a multiple of kv_heads, both at least 1"};
  if (head_dim < 1 || head_dim > max_head_dim) return {"causal_attention: head_dim must be 1..256"};
  return {};
}

Status check(const CausalAttention& p) {
  if (Status status = check_heads(p.heads, p.kv_heads, p.head_dim); !status.ok()) return status;
  if (p.rows < 0 || p.window < 0) return {"causal_attention: rows and window must not be negative"};
  if (p.rows > 0 && (!p.q_start || !p.k_start)) return {"causal_attention: q_start and k_start must be given"};
  for (int64_t row = 0; row < p.rows; ++row) {
    const int64_t queries = p.q_start[row + 1] - p.q_start[row];
    if (queries < 0) return {"causal_attention: q_start must not decrease"};
    if (p.k_start[row + 1] - p.k_start[row] < queries) return {"causal_attention: a row has fewer keys than queries"};
  }
  if (p.rows > 0 && p.q_start[p.rows] > p.q_start[0] && (!p.q || !p.k || !p.v || !p.y))
    return {"causal_attention: q, k, v and y must be given"};
  return {};
}

int64_t tiles(int64_t tokens) { return (tokens + attention_tile - 1) / attention_tile; }

// Scratch layout: the number of tiles before each row, the backward's dot products (y·grad_y), and working memory for each thread.
struct Scratch {
  int64_t *q_tiles, *k_tiles;
  float *dot, *work;
  int64_t bytes, work_floats;

  Scratch(const CausalAttention& p, bool backward, void* memory) {
    const int64_t starts = whole_cache_lines((p.rows + 1) * static_cast<int64_t>(sizeof(int64_t)));
    const int64_t dots = backward && p.rows > 0 ? whole_cache_lines(p.q_start[p.rows] * p.heads * 4) : 0;
    work_floats = whole_cache_lines(attention_work_floats(p.head_dim) * 4) / 4;
    bytes = cache_line + (backward ? 2 : 1) * starts + dots + max_threads() * work_floats * 4;
    char* at = next_cache_line(memory);
    q_tiles = reinterpret_cast<int64_t*>(at);
    k_tiles = reinterpret_cast<int64_t*>(at += starts);
    dot = reinterpret_cast<float*>(at += backward ? starts : 0);
    work = reinterpret_cast<float*>(at + dots);
  }
};

void count_tiles(const int64_t* start, int64_t rows, int64_t* before) {
  before[0] = 0;
  for (int64_t row = 0; row < rows; ++row) before[row + 1] = before[row] + tiles(start[row + 1] - start[row]);
}

// Calls body(row, first token, head, work) for every tile of every row and head. The last tiles of a row attend to the most keys. They run
// first, so that the threads finish at about the same time.
template <class Body>
void over_tiles(const int64_t* before, int64_t rows, int64_t heads, const Scratch& scratch, Body&& body) {
  parallel_items(before[rows] * heads, [&](int64_t item, int64_t thread) {
    const int64_t tile = before[rows] - 1 - item / heads;
    const int64_t row = std::upper_bound(before, before + rows + 1, tile) - before - 1;
    body(row, (tile - before[row]) * attention_tile, item % heads, scratch.work + thread * scratch.work_floats);
  });
}

}  // namespace

int64_t causal_attention_scratch(const CausalAttention& p) { return check(p).ok() ? Scratch(p, false, nullptr).bytes : 0; }

Status causal_attention_forward(const CausalAttention& p, void* memory) {
  if (Status status = check(p); !status.ok()) return status;
  if (p.rows == 0) return {};
  const Scratch scratch(p, false, memory);
  count_tiles(p.q_start, p.rows, scratch.q_tiles);
  over_tiles(scratch.q_tiles, p.rows, p.heads, scratch, [&](int64_t row, int64_t first, int64_t head, float* work) {
    BASED_DISPATCH(attention_forward_tile, p, row, first, head, work);
  });
  return {};
}

int64_t causal_attention_backward_scratch(const CausalAttentionBackward& b) {
  return check(b.forward).ok() ? Scratch(b.forward, true, nullptr).bytes : 0;
}

Status causal_attention_backward(const CausalAttentionBackward& b, void* memory) {
  const CausalAttention& p = b.forward;
  if (Status status = check(p); !status.ok()) return status;
  if (p.rows == 0) return {};
  const bool any = p.q_start[p.rows] > p.q_start[0];
  if (any && (!p.log_sum_exp || !b.grad_y || !b.grad_q)) return {"causal_attention: log_sum_exp, grad_y and grad_q must be given"};
  if (p.k_start[p.rows] > p.k_start[0] && (!b.grad_k || !b.grad_v)) return {"causal_attention: grad_k and grad_v must be given"};
  const Scratch scratch(p, true, memory);
  count_tiles(p.q_start, p.rows, scratch.q_tiles);
  count_tiles(p.k_start, p.rows, scratch.k_tiles);
  over_tiles(scratch.q_tiles, p.rows, p.heads, scratch, [&](int64_t row, int64_t first, int64_t head, float* work) {
    BASED_DISPATCH(attention_backward_queries, b, row, first, head, scratch.dot, work);
  });
  over_tiles(scratch.k_tiles, p.rows, p.kv_heads, scratch, [&](int64_t row, int64_t first, int64_t head, float* work) {
    BASED_DISPATCH(attention_backward_keys, b, row, first, head, scratch.dot, work);
  });
  return {};
}

Status causal_attention_step(const CausalAttentionStep& p) {
  if (Status status = check_heads(p.heads, p.kv_heads, p.head_dim); !status.ok()) return status;
  if (p.rows < 0 || p.capacity < 1) return {"causal_attention_step: rows must not be negative and capacity at least 1"};
  if (p.rows == 0) return {};
  if (!p.q || !p.k || !p.v || !p.y || !p.k_ring || !p.v_ring || !p.position)
    return {"causal_attention_step: q, k, v, y, both rings and position must be given"};
  int64_t keys = 0;
  for (int64_t row = 0; row < p.rows; ++row) {
    const int64_t slot = p.slot ? p.slot[row] : row;
    if (slot < 0 || p.position[row] < 0) return {"causal_attention_step: slots and positions must not be negative"};
    keys += std::min(p.position[row] + 1, p.capacity);
  }
  over_rows_and_heads(p.rows, p.heads, p.kv_heads, p.head_dim, keys,
                      [&](int64_t row, int64_t kv_head) { BASED_DISPATCH(attention_step_row, p, row, kv_head); });
  return {};
}

namespace {
const DefineLaunchers<CausalAttentionLaunchers> kCausalAttentionLaunchers(
    Device::cpu, {.supports = [](const CausalAttention& p) { return p.dropout.threshold == 0; },
                  .forward_scratch = causal_attention_scratch,
                  .forward = on_cpu<causal_attention_forward>,
                  .backward_scratch = causal_attention_backward_scratch,
                  .backward = on_cpu<causal_attention_backward>,
                  .step = on_cpu<causal_attention_step>,
                  .step_fuses_rotary = nullptr,
                  .joint_gradients = false,
                  .step_takes_tokens = nullptr,
                  .step_tokens = nullptr});
}

}  // namespace based::kernels::cpu
