// Rows of tokens for linear attention, with gradients.
#pragma once
#include "based/kernels/linear_attention.h"
#include "bench/cuda/problems/device_memory.cuh"

namespace based::bench {

struct LinearAttentionShape {
  std::vector<int64_t> lengths;
  int32_t heads = 1, features = 64, head_dim = 64;
  bool single_tf32 = false, negative = false;  // q·k of one sign: that of all denominators
  float eps = 1e-3F;
  std::string name() const;
};

// One problem, fp32, with its buffers.
struct LinearAttentionProblem {
  kernels::LinearAttentionBackward p;
  Buffer q, k, v, y, denominator, row_start, grad_y, grad_q, grad_k, grad_v, scratch;

  LinearAttentionProblem(const LinearAttentionShape& shape, uint64_t seed);
};

}  // namespace based::bench
