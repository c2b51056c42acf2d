// Attention over pairs of tokens in fp32, for softmax, Taylor and linear attention: what its launchers are told.
// docs/kernels/pair-attention.md draws it.
#pragma once
#include "based/kernels/causal_attention.h"
#include "based/kernels/linear_attention.h"
#include "based/kernels/taylor_attention.h"

namespace based::kernels::cuda::detail::pairs {

// How rows of `width` floats lie in shared memory, and how a block's threads share them: 1 << shift threads a row, four columns each.
struct Layout {
  int32_t width, pitch, shift;
};

// What a pair weighs with its score s = q·k: exp(scale s), 1 + s + s²/2, or s.
enum class Weights { softmax, taylor, linear };

// Taylor and linear attention are told as causal attention whose queries and keys are the same tokens; its log_sum_exp are denominators.
struct Problem {
  CausalAttention of;  // head_dim: v's
  int32_t qk_dim = 0;  // head_dim of q and k
  Weights weights = Weights::softmax;
  float eps = 0;  // added to the denominators
  // The others are set by the launchers.
  Layout qk = {}, v = {};
  int32_t turn = 0;       // of SharedMemory
  bool in_fours = false;  // every four elements of all operands from one address on, a multiple of 16 bytes
};

struct Gradients {
  Problem forward;
  const float* grad_y = nullptr;
  float *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
  int64_t grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
  float* statistics = nullptr;  // scratch [q_tokens, heads, 2]: what weights are normalised by, grad_y·y
};

Problem problem_of(const CausalAttention&);
Problem problem_of(const TaylorAttention&);
Problem problem_of(const LinearAttention&);
Gradients gradients_of(const CausalAttentionBackward&, void* scratch);
Gradients gradients_of(const TaylorAttentionBackward&, void* scratch);
Gradients gradients_of(const LinearAttentionBackward&, void* scratch);

// Whether the device and the kernels take it.
bool supports(const Problem&);
inline int64_t backward_scratch(const Problem& p) { return p.of.q_tokens * p.of.heads * 8; }
Status forward(Problem, Stream);
Status backward(Gradients, Stream);

// backward()'s launches, in this order: the first leaves statistics to the second.
Status gradients_of_queries(const Gradients&, Stream);
Status gradients_of_keys(const Gradients&, Stream);

}  // namespace based::kernels::cuda::detail::pairs
