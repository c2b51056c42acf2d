// Second-order Taylor linear attention (paper, section 4.1 and algorithms 1 and 2), normalised:
//   y_t = Σ_{s≤t} w(q_t·k_s) v_s / Σ_{s≤t} w(q_t·k_s),   w(a) = 1 + a + a²/2
// With decay each term of both sums is weighted by g_h^(t-s), g_h in (0, 1], one fixed rate a head; with decay_denominator = false, the
// terms of the numerator only, as in the authors' code. The paper's appendix "Decay" does not say which.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// Packed second-order features of a vector x of size d, in this order: 1; x_0 … x_{d-1}; then for i = 0 … d-1, for j = i … d-1:
// x_i·x_j, scaled by 1/√2 where i = j. So that φ(q)·φ(k) = 1 + q·k + (q·k)²/2.
constexpr int64_t packed_features(int64_t d) { return 1 + d + d * (d + 1) / 2; }

// Floating-point operations of the packed form (multiply and add are two): every token's outer product into the state, and its readout,
// denominator included. The pairs of tokens within the chunks of a chunked kernel are not counted, since the chunk length is the kernel's
// choice. 2.6e9 for 4096 tokens, 16 heads, feature_dim 16, head_dim 64; 2.95e9 with the pairs of chunks of 64.
constexpr int64_t taylor_attention_flops(int64_t tokens, int64_t heads, int64_t feature_dim, int64_t head_dim) {
  return tokens * heads * 4 * packed_features(feature_dim) * (head_dim + 1);
}

struct TaylorAttention {         // caller owns all memory
  const void* q = nullptr;       // [tokens, heads, feature_dim], already scaled by feature_dim^-1/4
  const void* k = nullptr;       // [tokens, heads, feature_dim], scaled like q
  const void* v = nullptr;       // [tokens, heads, head_dim]
  void* y = nullptr;             // [tokens, heads, head_dim]
  float* denominator = nullptr;  // [tokens, heads], Σ w; kept for the backward; may be null
  float* kv_state = nullptr;     // [slots, heads, packed_features, head_dim], Σ φ(k) vᵀ; read, then updated in place; null (and then
  // k_state too): every row starts from zero and its final state is not stored
  float* k_state = nullptr;            // [slots, heads, packed_features], Σ φ(k), the denominator's state; updated like kv_state
  const float* decay = nullptr;        // [heads], g_h; null: 1
  bool decay_denominator = true;       // false: the denominator and k_state do not decay
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]
  const int64_t* slot = nullptr;       // [rows], state row of each sequence; null: row r uses state row r
  int64_t tokens = 0, rows = 0;
  int32_t heads = 0, feature_dim = 16, head_dim = 64;  // feature_dim 1..64
  DType dtype = DType::f32;                            // type of q, k, v, y; sums are always fp32
  // CUDA, taylor_attention_step: no kernel that is still running when this one starts writes the states or slots, so this kernel may read
  // them before the previous kernel has ended.
  bool state_is_private = false;
  float scale = 1;  // CUDA, taylor_attention_step: q and k are first multiplied by it and rounded to dtype
  // CUDA, where taylor_attention_takes_strides: elements from one token to the next, of q, k and their gradients, and of v and its
  // gradient; 0: contiguous.
  int32_t qk_stride = 0, v_stride = 0;
  bool single_tf32 = false;  // as in CausalAttention, for the kernel over pairs of tokens
};

// Gradients. `forward` gives the forward's inputs, its denominator and its y; `initial_*` is the state that the forward started from.
// States are indexed by row here, not by slot. The kv and k states of a pair are either both given or both null.
struct TaylorAttentionBackward {
  TaylorAttention forward;                  // y and denominator filled; its states are ignored
  const float* initial_kv_state = nullptr;  // [rows, heads, packed_features, head_dim], or null for zero
  const float* initial_k_state = nullptr;   // [rows, heads, packed_features]
  const void* grad_y = nullptr;             // like y
  const float* grad_kv_state = nullptr;     // gradient of the final state, like initial_kv_state, or null for zero
  const float* grad_k_state = nullptr;
  void* grad_q = nullptr;                  // like q
  void* grad_k = nullptr;                  // like k
  void* grad_v = nullptr;                  // like v
  float* grad_initial_kv_state = nullptr;  // like initial_kv_state, or null: not computed
  float* grad_initial_k_state = nullptr;
};

constexpr int64_t kTaylorStepHeadDim = 256;  // CUDA: the largest head_dim of a step

// A step of up to kTaylorStepTokens consecutive tokens of one sequence, with the bits of a step for each of them.
constexpr int32_t kTaylorStepTokens = 8;
struct TaylorTokens {
  TaylorAttention step;  // rows = 1, tokens: of the sequence; q, k and v [tokens, …], y [tokens + padding, …]; denominator is null
  int64_t padding = 0;   // rows of y that repeat its last token
  float* kept_kv_state = nullptr;  // [tokens − 1, heads, packed_features, head_dim], the state after each token but the last; may be null
  float* kept_k_state = nullptr;   // [tokens − 1, heads, packed_features]; null where kept_kv_state is
};

namespace cpu {
// Bytes of scratch that the call needs (0: none).
int64_t taylor_attention_scratch(const TaylorAttention&);
Status taylor_attention_forward(const TaylorAttention&, void* scratch);
int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward&);
Status taylor_attention_backward(const TaylorAttentionBackward&, void* scratch);
// One token a row (tokens == rows, row_start ignored): updates the packed state, then reads it out, in one pass over it (algorithm 2).
// A row's result does not depend on the other rows, bit for bit.
Status taylor_attention_step(const TaylorAttention&);
}  // namespace cpu

namespace cuda {
// Whether the forward, and a backward that is given the denominator, accept q, k and v that are columns of wider tensors. `states`: the
// call reads or writes states or their gradients.
bool taylor_attention_takes_strides(const TaylorAttention&, bool states);
int64_t taylor_attention_scratch(const TaylorAttention&);
Status taylor_attention_forward(const TaylorAttention&, void* scratch, Queue);
int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward&);
Status taylor_attention_backward(const TaylorAttentionBackward&, void* scratch, Queue);
Status taylor_attention_step(const TaylorAttention&, Queue);
Status taylor_attention_tokens(const TaylorTokens&, Queue);
}  // namespace cuda

// A device's launchers, as above.
struct TaylorAttentionLaunchers {
  int64_t (*forward_scratch)(const TaylorAttention&);  // bytes
  Status (*forward)(const TaylorAttention&, void* scratch, Queue);
  int64_t (*backward_scratch)(const TaylorAttentionBackward&);
  Status (*backward)(const TaylorAttentionBackward&, void* scratch, Queue);
  bool (*takes_strides)(const TaylorAttention&, bool states);  // taylor_attention_takes_strides; null: never
  Status (*step)(const TaylorAttention&, Queue);
  int64_t step_head_dim;                              // the largest head_dim of a step
  bool step_scales;                                   // whether a step multiplies q and k by `scale`
  Status (*step_tokens)(const TaylorTokens&, Queue);  // null: a step for each token; needs step_scales
};

}  // namespace based::kernels
