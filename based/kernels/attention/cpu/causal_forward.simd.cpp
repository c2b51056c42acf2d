// Attention of one tile of queries over its keys, block by block, with a running maximum and sum for each query. A query is a vector lane,
// so neither needs a reduction across lanes.
#include <cmath>
#include <limits>

#include "based/kernels/attention/cpu/causal_tile.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// Replaces scores by exp(score - maximum). Updates each lane's maximum and sum, and rescales the outputs accumulated so far.
void softmax_block(float* scores, int64_t n, float* maximum, float* sum, float* y, int64_t padded) {
  for (int64_t lane = 0; lane < attention_tile; lane += lanes) {
    const Vec before = load(maximum + lane);
    Vec top = before;
    for (int64_t j = 0; j < n; ++j) top = max(top, load(scores + j * attention_tile + lane));
    Vec total{};
    for (int64_t j = 0; j < n; ++j) {
      float* s = scores + j * attention_tile + lane;
      const Vec e = exp(load(s) - top);
      store(s, e);
      total += e;
    }
    const Vec keep = exp(before - top);
    store(sum + lane, load(sum + lane) * keep + total);
    store(maximum + lane, top);
    for (int i = 0; i < lanes; ++i)
      if (keep[i] != 1.0f)
        for (int64_t c = 0; c < padded; c += lanes) store(y + (lane + i) * padded + c, load(y + (lane + i) * padded + c) * keep[i]);
  }
}

template <class T>
void forward_tile(const CausalAttention& p, int64_t row, int64_t first, int64_t head, float* work) {
  const int64_t d = p.head_dim, padded = attention_padded(d);
  float* tile = work;
  float* y = tile + padded * attention_tile;
  float* k_copy = y + padded * attention_tile;
  float* v_copy = k_copy + padded * attention_block;
  float* scores = v_copy + padded * attention_block;
  float* maximum = scores + attention_tile * attention_block;
  float* sum = maximum + attention_tile;

  const int64_t queries = p.q_start[row + 1] - p.q_start[row], keys = p.k_start[row + 1] - p.k_start[row];
  const int64_t n = std::min(attention_tile, queries - first), position = first + keys - queries;
  const int64_t kv_head = head / (p.heads / p.kv_heads), token = p.q_start[row] + first;
  const T* k = static_cast<const T*>(p.k) + p.k_start[row] * p.k_stride + kv_head * d;
  const T* v = static_cast<const T*>(p.v) + p.k_start[row] * p.v_stride + kv_head * d;

  transpose_tile(static_cast<const T*>(p.q) + token * p.q_stride + head * d, p.q_stride, n, d, p.scale, tile);
  std::fill_n(y, attention_tile * padded, 0.0f);
  std::fill_n(maximum, attention_tile, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, attention_tile, 0.0f);
  const int64_t begin = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0, end = position + n;
  for (int64_t key = begin; key < end; key += attention_block) {
    const int64_t m = std::min(attention_block, end - key);
    products(padded_rows(k + key * p.k_stride, p.k_stride, m, d, k_copy), m, tile, d, scores);
    // Lane i, at key position `position + i`, attends to keys position + i - window + 1 to position + i.
    const int64_t distance = key - position, window = p.window > 0 ? p.window : end;
    if (distance + m > 1 || distance + window < attention_tile)
      mask_lanes(scores, m, distance, distance + window, -std::numeric_limits<float>::infinity());
    softmax_block(scores, m, maximum, sum, y, padded);
    accumulate(scores, padded_rows(v + key * p.v_stride, p.v_stride, m, d, v_copy), m, d, y);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (p.log_sum_exp) p.log_sum_exp[(token + i) * p.heads + head] = maximum[i] + std::log(sum[i]);
    sum[i] = 1 / sum[i];
  }
  write_tile(y, sum, n, d, static_cast<T*>(p.y) + (token * p.heads + head) * d, p.heads * d);
}

}  // namespace

void attention_forward_tile(const CausalAttention& p, int64_t row, int64_t first, int64_t head, float* work) {
  p.dtype == DType::bf16 ? forward_tile<bf16>(p, row, first, head, work) : forward_tile<float>(p, row, first, head, work);
}

}  // namespace based::kernels::cpu::BASED_ISA
