// Gradients of attention in two passes that each recompute the scores: one over tiles of queries for grad_q, one over tiles of keys for
// grad_k and grad_v. Each output is written by one task, so the bits do not depend on the number of threads. Only one block of scores is
// stored at a time.
//   P = exp(S − log_sum_exp),  dS = P ⊙ (grad_y·Vᵀ − dot),  dot_i = y_i·grad_y_i
//   grad_q = scale·dS·K,  grad_k = scale·dSᵀ·Q,  grad_v = Pᵀ·grad_y
#include <limits>

#include "based/kernels/attention/cpu/causal_tile.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// The sizes of one row of the batch, used by both passes.
struct Row {
  int64_t q_start, k_start, queries, keys, group, head_dim, padded, window;
  Row(const CausalAttention& p, int64_t row)
      : q_start(p.q_start[row]),
        k_start(p.k_start[row]),
        queries(p.q_start[row + 1] - q_start),
        keys(p.k_start[row + 1] - k_start),
        group(p.heads / p.kv_heads),
        head_dim(p.head_dim),
        padded(attention_padded(p.head_dim)),
        window(p.window > 0 ? p.window : keys) {}
};

// Working memory of one thread, in the order that attention_work_floats counts it.
struct Work {
  float *tile, *other_tile, *sums, *other_sums, *block, *other_block, *scores, *products, *lanes;
  Work(float* memory, int64_t padded) {
    const int64_t t = padded * attention_tile, b = padded * attention_block, s = attention_tile * attention_block;
    tile = memory, other_tile = tile + t, sums = other_tile + t, other_sums = sums + t;
    block = other_sums + t, other_block = block + b;
    scores = other_block + b, products = scores + s, lanes = products + s;
  }
};

template <class T>
void backward_queries(const CausalAttentionBackward& b, int64_t row, int64_t first, int64_t head, float* dot, float* memory) {
  const CausalAttention& p = b.forward;
  const Row r(p, row);
  const Work work(memory, r.padded);
  const int64_t d = r.head_dim, n = std::min(attention_tile, r.queries - first), position = first + r.keys - r.queries;
  const int64_t token = r.q_start + first, kv_head = head / r.group, dense = p.heads * d;
  const T* y = static_cast<const T*>(p.y) + token * dense + head * d;
  const T* grad_y = static_cast<const T*>(b.grad_y) + token * dense + head * d;

  float *log_sum_exp = work.lanes, *dots = log_sum_exp + attention_tile, *factor = dots + attention_tile;
  for (int64_t i = 0; i < attention_tile; ++i) {
    log_sum_exp[i] = i < n ? p.log_sum_exp[(token + i) * p.heads + head] : 0;
    dots[i] = 0;
    factor[i] = p.scale;
    if (i >= n) continue;
    Vec sum{};
    for (int64_t c = 0; c < d; c += lanes) {
      const int columns = static_cast<int>(std::min<int64_t>(lanes, d - c));
      sum = fma(load(y + i * dense + c, columns), load(grad_y + i * dense + c, columns), sum);
    }
    dots[i] = dot[(token + i) * p.heads + head] = reduce_add(sum);
  }
  transpose_tile(static_cast<const T*>(p.q) + token * p.q_stride + head * d, p.q_stride, n, d, p.scale, work.tile);
  transpose_tile(grad_y, dense, n, d, 1.0f, work.other_tile);
  std::fill_n(work.sums, attention_tile * r.padded, 0.0f);

  const int64_t end = position + n;
  for (int64_t key = std::max<int64_t>(0, position - r.window + 1); key < end; key += attention_block) {
    const int64_t m = std::min(attention_block, end - key);
    const Rows k = padded_rows(static_cast<const T*>(p.k) + (r.k_start + key) * p.k_stride + kv_head * d, p.k_stride, m, d, work.block);
    const Rows v =
        padded_rows(static_cast<const T*>(p.v) + (r.k_start + key) * p.v_stride + kv_head * d, p.v_stride, m, d, work.other_block);
    products(k, m, work.tile, d, work.scores);
    products(v, m, work.other_tile, d, work.products);
    for (int64_t j = 0; j < m; ++j)
      for (int64_t lane = 0; lane < attention_tile; lane += lanes) {
        float* s = work.scores + j * attention_tile + lane;
        const Vec probability = exp(load(s) - load(log_sum_exp + lane));
        store(s, probability * (load(work.products + j * attention_tile + lane) - load(dots + lane)));
      }
    mask_lanes(work.scores, m, key - position, key - position + r.window, 0.0f);
    accumulate(work.scores, k, m, d, work.sums);
  }
  write_tile(work.sums, factor, n, d, static_cast<T*>(b.grad_q) + token * dense + head * d, dense);
}

template <class T>
void backward_keys(const CausalAttentionBackward& b, int64_t row, int64_t first, int64_t kv_head, const float* dot, float* memory) {
  const CausalAttention& p = b.forward;
  const Row r(p, row);
  const Work work(memory, r.padded);
  const int64_t d = r.head_dim, n = std::min(attention_tile, r.keys - first), before = r.keys - r.queries;
  const int64_t token = r.k_start + first, dense = p.heads * d, kv_dense = p.kv_heads * d;
  transpose_tile(static_cast<const T*>(p.k) + token * p.k_stride + kv_head * d, p.k_stride, n, d, p.scale, work.tile);
  transpose_tile(static_cast<const T*>(p.v) + token * p.v_stride + kv_head * d, p.v_stride, n, d, 1.0f, work.other_tile);
  std::fill_n(work.sums, 2 * attention_tile * r.padded, 0.0f);

  // Query i is at key position before + i. It attends to a key of this tile unless it precedes the first key or is a window or more past
  // the last.
  const int64_t begin = std::max<int64_t>(0, first - before), end = std::min(r.queries, first + n - 1 + r.window - before);
  for (int64_t head = kv_head * r.group; head < (kv_head + 1) * r.group; ++head)
    for (int64_t query = begin; query < end; query += attention_block) {
      const int64_t m = std::min(attention_block, end - query), at = r.q_start + query;
      const Rows q = padded_rows(static_cast<const T*>(p.q) + at * p.q_stride + head * d, p.q_stride, m, d, work.block);
      const Rows grad_y = padded_rows(static_cast<const T*>(b.grad_y) + at * dense + head * d, dense, m, d, work.other_block);
      products(q, m, work.tile, d, work.scores);
      products(grad_y, m, work.other_tile, d, work.products);
      // The mask precedes the exponential: the score of a masked key may be far above log_sum_exp and overflow.
      const int64_t distance = before + query - first;
      mask_lanes(work.scores, m, distance - r.window + 1, distance + 1, -std::numeric_limits<float>::infinity());
      for (int64_t j = 0; j < m; ++j) {
        const Vec log_sum_exp = broadcast(p.log_sum_exp[(at + j) * p.heads + head]), dots = broadcast(dot[(at + j) * p.heads + head]);
        for (int64_t lane = 0; lane < attention_tile; lane += lanes) {
          float *s = work.scores + j * attention_tile + lane, *g = work.products + j * attention_tile + lane;
          const Vec probability = exp(load(s) - log_sum_exp);
          store(s, probability);
          store(g, probability * (load(g) - dots));
        }
      }
      accumulate(work.products, q, m, d, work.sums);
      accumulate(work.scores, grad_y, m, d, work.other_sums);
    }
  std::fill_n(work.lanes, attention_tile, p.scale);
  write_tile(work.sums, work.lanes, n, d, static_cast<T*>(b.grad_k) + token * kv_dense + kv_head * d, kv_dense);
  std::fill_n(work.lanes, attention_tile, 1.0f);
  write_tile(work.other_sums, work.lanes, n, d, static_cast<T*>(b.grad_v) + token * kv_dense + kv_head * d, kv_dense);
}

}  // namespace

void attention_backward_queries(const CausalAttentionBackward& b, int64_t row, int64_t first, int64_t head, float* dot, float* work) {
  b.forward.dtype == DType::bf16 ? backward_queries<bf16>(b, row, first, head, dot, work)
                                 : backward_queries<float>(b, row, first, head, dot, work);
}

void attention_backward_keys(const CausalAttentionBackward& b, int64_t row, int64_t first, int64_t kv_head, const float* dot, float* work) {
  b.forward.dtype == DType::bf16 ? backward_keys<bf16>(b, row, first, kv_head, dot, work)
                                 : backward_keys<float>(b, row, first, kv_head, dot, work);
}

}  // namespace based::kernels::cpu::BASED_ISA
