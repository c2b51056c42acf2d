// A problem of linear attention, forward and backward.
#pragma once
#include "based/kernels/linear_attention/linear_attention.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

struct LinearAttentionShape {
  std::vector<int64_t> lengths;
  int32_t heads = 1, features = 64, head_dim = 64;
  bool single_tf32 = false, negative = false;  // negative: q·k, and so all denominators, are negative
  float eps = 1e-3F;
  std::string name() const;
};

// One fp32 problem with its buffers.
struct LinearAttentionProblem {
  kernels::LinearAttentionBackward p;
  Buffer q, k, v, y, denominator, row_start, grad_y, grad_q, grad_k, grad_v, scratch;

  LinearAttentionProblem(const LinearAttentionShape& shape, uint64_t seed);
};

}  // namespace based::bench
