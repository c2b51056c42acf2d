// A problem of softmax attention, forward and backward, over rows of queries and keys.
#pragma once
#include <algorithm>
#include <cmath>

#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/training/dropout.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

struct AttentionShape {
  std::vector<int64_t> queries, keys;  // per row
  int32_t heads, kv_heads, head_dim;
  int64_t window;
  kernels::DType dtype = kernels::DType::bf16;
  bool single_tf32 = false, dropout = false;  // fp32
};

inline std::vector<int64_t> row_starts(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> start{0};
  for (const int64_t n : lengths) start.push_back(start.back() + n);
  return start;
}

// k and v are columns of one tensor, as after a joint projection, and so are their gradients. q has padding between tokens.
struct AttentionProblem {
  static constexpr uint64_t kSeed = 5, kPlace = 3;
  static constexpr int64_t kStep = 17;
  kernels::CausalAttentionBackward b;
  int64_t q_width, kv_width;
  Buffer q, kv, y, log_sum_exp, grad_y, grad_q, grad_kv, q_start, k_start, step, scratch;

  AttentionProblem(const AttentionShape& s, uint64_t seed) : q_width(s.heads * s.head_dim), kv_width(s.kv_heads * s.head_dim) {
    kernels::CausalAttention& p = b.forward;
    const std::vector<int64_t> q_starts = row_starts(s.queries), k_starts = row_starts(s.keys);
    p.rows = static_cast<int64_t>(s.queries.size()), p.q_tokens = q_starts.back(), p.k_tokens = k_starts.back();
    p.heads = s.heads, p.kv_heads = s.kv_heads, p.head_dim = s.head_dim, p.window = s.window, p.dtype = s.dtype;
    p.scale = 1 / std::sqrt(static_cast<float>(s.head_dim)), p.q_stride = q_width + 64, p.k_stride = p.v_stride = 2 * kv_width;
    q = random_buffer(p.q_tokens * p.q_stride, p.dtype, 1.5, 3 * seed),
    kv = random_buffer(p.k_tokens * 2 * kv_width, p.dtype, 1, 3 * seed + 1);
    grad_y = random_buffer(p.q_tokens * q_width, p.dtype, 1, 3 * seed + 2);
    const int64_t size = kernels::dtype_size(p.dtype);
    y = Buffer(p.q_tokens * q_width * size), log_sum_exp = Buffer(p.q_tokens * s.heads * 4);
    grad_q = Buffer(p.q_tokens * p.q_stride * size), grad_kv = Buffer(p.k_tokens * 2 * kv_width * size);
    q_start = upload(q_starts), k_start = upload(k_starts);
    p.q = q.as(), p.k = kv.as(), p.v = kv.as<char>() + kv_width * size, p.y = y.as(), p.log_sum_exp = log_sum_exp.as<float>();
    p.q_start = q_start.as<int64_t>(), p.k_start = k_start.as<int64_t>();
    b.grad_y = grad_y.as(), b.grad_q = grad_q.as(), b.grad_k = grad_kv.as(), b.grad_v = grad_kv.as<char>() + kv_width * size;
    b.grad_q_stride = p.q_stride, b.grad_k_stride = b.grad_v_stride = 2 * kv_width;
    p.single_tf32 = s.single_tf32;
    if (s.dropout) {
      step = upload({kStep});
      p.dropout = {kSeed, kPlace, step.as<int64_t>(), kernels::dropout_threshold(0.2), 1 / 0.8F};
    }
    scratch = Buffer(std::max(kernels::cuda::causal_attention_scratch(p), kernels::cuda::causal_attention_backward_scratch(b)));
  }
};

}  // namespace based::bench
