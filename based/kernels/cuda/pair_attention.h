// Attention over pairs of tokens in fp32, for softmax and Taylor attention: what its launchers are told. docs/kernels/pair-attention.md
// draws it.
#pragma once
#include "based/kernels/causal_attention.h"
#include "based/kernels/taylor_attention.h"

namespace based::kernels::cuda::detail::pairs {

// Taylor attention is told as causal attention whose queries and keys are the same tokens; its log_sum_exp are denominators.
struct Problem {
  CausalAttention of;  // head_dim: v's
  int32_t qk_dim = 0;  // head_dim of q and k
  bool taylor = false;
  bool in_fours = false;  // every four elements of all operands from one address on, a multiple of 16 bytes; set by the launchers
};

struct Gradients {
  Problem forward;
  const float* grad_y = nullptr;
  float *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
  int64_t grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
  float* mean = nullptr;  // scratch [q_tokens, heads], grad_y·y
};

Problem problem_of(const CausalAttention&);
Problem problem_of(const TaylorAttention&);
Gradients gradients_of(const CausalAttentionBackward&, void* scratch);
Gradients gradients_of(const TaylorAttentionBackward&, void* scratch);

// Whether the device and the kernels take it.
bool supports(const Problem&);
inline int64_t backward_scratch(const Problem& p) { return p.of.q_tokens * p.of.heads * 4; }
Status forward(Problem, Stream);
Status backward(Gradients, Stream);

// backward()'s launches.
Status gradients_of_queries(const Gradients&, Stream);
Status gradients_of_keys(const Gradients&, Stream);

}  // namespace based::kernels::cuda::detail::pairs
