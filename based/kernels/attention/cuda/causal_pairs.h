// Causal attention in fp32 as a problem of based/kernels/pair_attention.
#pragma once
#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/pair_attention/pair_attention.h"

namespace based::kernels::cuda::detail::causal {

inline pairs::Problem pair_problem(const CausalAttention& p) {
  pairs::Problem to;
  to.q = p.q, to.k = p.k, to.v = p.v, to.y = p.y, to.normalizer = p.log_sum_exp;
  to.q_start = p.q_start, to.k_start = p.k_start, to.rows = p.rows;
  to.q_tokens = p.q_tokens, to.k_tokens = p.k_tokens;
  to.q_stride = p.q_stride, to.k_stride = p.k_stride, to.v_stride = p.v_stride;
  to.window = p.window;
  to.heads = p.heads, to.kv_heads = p.kv_heads, to.qk_dim = to.head_dim = p.head_dim;
  to.scale = p.scale;
  to.dtype = p.dtype, to.single_tf32 = p.single_tf32;
  to.dropout = {p.dropout.seed, p.dropout.place, p.dropout.step, p.dropout.threshold, p.dropout.scale, p.dropout.first_token};
  to.weights = pairs::Weights::softmax;
  return to;
}

inline pairs::Gradients pair_gradients(const CausalAttentionBackward& b, void* scratch) {
  pairs::Gradients to = pairs::gradients_of(pair_problem(b.forward), b, scratch);
  to.grad_q_stride = b.grad_q_stride, to.grad_k_stride = b.grad_k_stride, to.grad_v_stride = b.grad_v_stride;
  return to;
}

}  // namespace based::kernels::cuda::detail::causal
