// Attention over pairs of tokens in fp32 on a GPU, for softmax, Taylor and linear attention: docs/kernels/pair-attention.md.
//   y_i = Σ_j w(q_i·k_j) v_j / Σ_j w(q_i·k_j),   i + Lk − Lq − window < j ≤ i + Lk − Lq
// for query i of Lq and key j of Lk ≥ Lq of a row. Query head h reads key head h / (heads / kv_heads). And for the long convolution of the
// products of keys and values, with Lk = Lq and without a denominator:
//   y_i = Σ_j filter[i − j] (q_i·k_j) v_j
#pragma once
#include "based/kernels/common/kernel.h"

namespace based::kernels {

constexpr int64_t kPairAttentionDim = 128;  // maximum head_dim of q and k, and of v

}  // namespace based::kernels

namespace based::kernels::cuda::detail::pairs {

// The weight w of a pair with the score s = q·k: exp(scale s), 1 + s + s²/2, s, or filter[i − j] s.
enum class Weights { softmax, taylor, linear, filter };

// Softmax only: weights are dropped after the softmax. The weight of query token i (counted over all rows, from first_token), head h and
// key j (counted within the row) draws element (i·heads + h)·2^20 + j of training/dropout.h.
struct PairDropout {
  uint64_t seed = 0, place = 0;
  const int64_t* step = nullptr;  // scalar on the device
  uint32_t threshold = 0;         // dropout_threshold(p); 0: nothing is dropped
  float scale = 1;                // 1/(1 − p)
  int64_t first_token = 0;
};

// Rows of `width` floats in shared memory, `pitch` floats apart. 1 << shift threads of a block share a row, four columns each.
struct Layout {
  int32_t width, pitch, shift;
};

struct Operands {                    // caller owns all memory
  const void* q = nullptr;           // [q_tokens, heads, qk_dim]
  const void* k = nullptr;           // [k_tokens, kv_heads, qk_dim]
  const void* v = nullptr;           // [k_tokens, kv_heads, head_dim]
  void* y = nullptr;                 // [q_tokens, heads, head_dim], contiguous
  float* normalizer = nullptr;       // [q_tokens, heads]: ln Σ_j w for softmax, else Σ_j w + eps; the forward may have null
  const int64_t* q_start = nullptr;  // [rows + 1], queries of row r are q_start[r] .. q_start[r+1]; not for Weights::filter
  const int64_t* k_start = nullptr;  // [rows + 1], keys of row r; at least as many as queries
  int64_t rows = 0;
  int64_t q_tokens = 0, k_tokens = 0;                // totals over all rows
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from one token to the next
  int64_t window = 0;                                // number of keys that a query attends to; 0: all
  int32_t heads = 0, kv_heads = 0, head_dim = 64;    // head_dim: of v
  float scale = 1;
  DType dtype = DType::f32;  // type of q, k, v and y; only f32 is supported
  bool single_tf32 = false;  // round operands to TF32 (10 bits); else split each operand into two TF32 parts
  PairDropout dropout = {};
  // Weights::filter, whose rows have q_tokens / rows tokens each:
  const float* filter = nullptr;  // [heads, taps], the tap of the distance 0 first; 0 from the distance `taps` on
  int64_t taps = 0;               // at least 1
};

struct Problem : Operands {
  int32_t qk_dim = 0;  // head_dim of q and k
  Weights weights = Weights::softmax;
  float eps = 0;  // added to the denominators
  // forward() and backward() set the following members.
  int32_t row_length = 0;  // q_tokens / rows
  Layout qk_layout = {}, v_layout = {};
  int32_t buffer_step = 0;  // see SharedMemory
  bool in_fours = false;    // all operands can be accessed four elements at a time, aligned to 16 bytes
};

struct Gradients {
  Problem forward;
  const float* grad_y = nullptr;
  float *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
  int64_t grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
  float* statistics = nullptr;  // scratch [q_tokens, heads, 2]: the factor that normalises weights, and grad_y·y
  // With Weights::filter, which has no statistics, instead:
  float* filter_parts = nullptr;  // scratch of filter_scratch() bytes
  float* grad_filter = nullptr;   // [heads, taps]
};

// The problem of an attention whose queries and keys are the same tokens, with all heads of all tokens contiguous.
// Attention: a struct with the members q, k, v, y, denominator, row_start, tokens, rows, heads, head_dim, dtype and single_tf32.
template <class Attention>
Problem problem_of_tokens(const Attention& p, int32_t qk_dim, Weights weights) {
  Problem problem;
  problem.q = p.q, problem.k = p.k, problem.v = p.v, problem.y = p.y, problem.normalizer = p.denominator;
  problem.q_start = problem.k_start = p.row_start, problem.rows = p.rows, problem.q_tokens = problem.k_tokens = p.tokens;
  problem.q_stride = problem.k_stride = int64_t{p.heads} * qk_dim, problem.v_stride = int64_t{p.heads} * p.head_dim;
  problem.heads = problem.kv_heads = p.heads, problem.head_dim = p.head_dim, problem.dtype = p.dtype, problem.single_tf32 = p.single_tf32;
  problem.qk_dim = qk_dim, problem.weights = weights;
  return problem;
}

// Gradients with the strides of their inputs. Backward: a struct with the members grad_y, grad_q, grad_k and grad_v.
template <class Backward>
Gradients gradients_of(const Problem& p, const Backward& b, void* scratch) {
  return {p,
          static_cast<const float*>(b.grad_y),
          static_cast<float*>(b.grad_q),
          static_cast<float*>(b.grad_k),
          static_cast<float*>(b.grad_v),
          p.q_stride,
          p.k_stride,
          p.v_stride,
          static_cast<float*>(scratch)};
}

// Whether the device and the kernels support it.
bool supports(const Problem&);
inline int64_t backward_scratch(const Problem& p) { return p.q_tokens * p.heads * 8; }
int64_t filter_scratch(const Problem&);  // bytes
Status forward(Problem, Queue);
Status backward(Gradients, Queue);

// The two launches of backward(), in this order: the first writes the statistics that the second reads.
Status gradients_of_queries(const Gradients&, Queue);
Status gradients_of_keys(const Gradients&, Queue);
// The first of them with Weights::filter: a few rows at a time, it adds the parts of the filter's gradient that gradients_of_queries()
// writes.
Status gradients_of_queries_and_filter(const Gradients&, Queue);

}  // namespace based::kernels::cuda::detail::pairs
