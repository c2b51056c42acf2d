// A slow reference on the GPU: the sums of the definition of Taylor attention in double, one block for each row of a result.
#pragma once
#include "based/kernels/taylor/taylor.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

// y [tokens, heads, head_dim] and the denominators [tokens, heads] of p's tokens first, first + step, …, starting from p's states before
// the call.
void taylor_reference_forward(const kernels::TaylorAttention& p, int64_t first, int64_t step, double* y, double* denominator);
// The states [rows, heads, features, head_dim] and [rows, heads, features] after the call; p holds those before it.
void taylor_reference_state(const kernels::TaylorAttention& p, double* kv, double* k);

// Gradients by their definition, for tokens first, first + step, …: grad_q and grad_k [count, heads, feature_dim], grad_v [count, heads,
// head_dim]; where the states are given, grad_kv and grad_k_sums like them, for all rows.
struct TaylorGradients {
  double *q, *k, *v, *kv, *k_sums;
};
void taylor_reference_backward(const kernels::TaylorAttentionBackward& p, int64_t first, int64_t step, const TaylorGradients& to);

}  // namespace based::bench
