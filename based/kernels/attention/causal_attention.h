// Softmax attention, causal, over all keys or over a sliding window, with grouped heads (paper, section 4.2 and algorithm 3):
//   y_i = Σ_j softmax_j(scale·q_i·k_j) v_j,   i + Lk − Lq − window < j ≤ i + Lk − Lq
// for query i of Lq and key j of Lk ≥ Lq of a row: the queries are the row's last tokens, and `window` counts the keys that a query attends
// to, its own included. Query head h reads key head h / (heads / kv_heads). Keys are processed in blocks with a running
// maximum, so the N x N scores are never stored. With a window the cost is proportional to the window.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// Attention weights are dropped after the softmax: y_i = Σ_j keep_ij/(1 − p) softmax_j v_j. The weight of query token i (counted over all
// rows, from first_token), head h and key j (counted within the row) draws element (i·heads + h)·2^20 + j of dropout.h. Only CUDA in fp32
// supports it.
struct AttentionDropout {
  uint64_t seed = 0, place = 0;
  const int64_t* step = nullptr;  // scalar on the device
  uint32_t threshold = 0;         // dropout_threshold(p); 0: nothing is dropped
  float scale = 1;                // 1/(1 − p)
  int64_t first_token = 0;
};

struct CausalAttention {             // caller owns all memory
  const void* q = nullptr;           // [q_tokens, heads, head_dim]
  const void* k = nullptr;           // [k_tokens, kv_heads, head_dim]
  const void* v = nullptr;           // [k_tokens, kv_heads, head_dim]
  void* y = nullptr;                 // [q_tokens, heads, head_dim], contiguous
  float* log_sum_exp = nullptr;      // [q_tokens, heads], ln Σ_j exp(scale·q·k_j), read by the backward; may be null
  const int64_t* q_start = nullptr;  // [rows + 1], queries of row r are q_start[r] .. q_start[r+1]
  const int64_t* k_start = nullptr;  // [rows + 1], keys of row r are k_start[r] .. k_start[r+1]; at least as many as its queries
  int64_t rows = 0;
  int64_t q_tokens = 0, k_tokens = 0;  // totals over all rows; they size the CUDA grids, since row lengths are only on the device
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from one token to the next
  int64_t window = 0;                                // 0: all keys
  int32_t heads = 0, kv_heads = 0, head_dim = 64;    // head_dim 1..256
  float scale = 1;
  DType dtype = DType::f32;  // type of q, k, v and y; scores and sums are fp32
  bool single_tf32 = false;  // CUDA in fp32: round operands to TF32 (10 bits); else split each operand into two TF32 parts
  AttentionDropout dropout = {};
};

// Gradients have the same bits on every run and for any number of threads. `forward` holds the forward's inputs, y and log_sum_exp.
struct CausalAttentionBackward {
  CausalAttention forward;
  const void* grad_y = nullptr;  // [q_tokens, heads, head_dim], contiguous
  void* grad_q = nullptr;        // [q_tokens, heads, head_dim], contiguous
  void* grad_k = nullptr;        // [k_tokens, kv_heads, head_dim], contiguous
  void* grad_v = nullptr;        // [k_tokens, kv_heads, head_dim], contiguous
  // Elements from one token of a gradient to the next. Only the CUDA kernels read them: there the gradients may be parts of one tensor.
  int64_t grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
};

// One token per row. The ring stores key p at index p mod capacity. The step writes the new key, p = position[row], and then attends over
// the last min(p + 1, capacity) keys in the order of their positions. A ring that is enlarged before it wraps therefore gives the same
// bits.
struct CausalAttentionStep {
  const void* q = nullptr;            // [rows, heads, head_dim]
  const void* k = nullptr;            // [rows, kv_heads, head_dim]
  const void* v = nullptr;            // [rows, kv_heads, head_dim]
  void* y = nullptr;                  // [rows, heads, head_dim], contiguous
  void* k_ring = nullptr;             // [slots, capacity, kv_heads, head_dim]
  void* v_ring = nullptr;             // [slots, capacity, kv_heads, head_dim]
  const int64_t* position = nullptr;  // [rows], position of the row's token in its sequence = number of keys before it
  const int64_t* slot = nullptr;      // [rows], distinct; null: row r uses slot r
  int64_t rows = 0, capacity = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from one row to the next
  int32_t heads = 0, kv_heads = 0, head_dim = 64;    // head_dim 1..256
  float scale = 1;
  DType dtype = DType::f32;       // type of q, k, v and y
  DType ring_dtype = DType::f32;  // type of both rings
  // CUDA: no earlier kernel that may still be running writes the rings or slots, so this kernel reads them before that kernel ends. An
  // earlier kernel may still write the positions.
  bool ring_is_private = false;
  // CUDA, if causal_attention_step_fuses_rotary() (causal_attention_plan.h): rotate q and k first, as Rotary (rotary.h) does with all of
  // head_dim, element d paired with d + head_dim / 2. 0: no rotation.
  double rotary_base = 0;
};

// A step of up to kCausalAttentionTokens consecutive tokens of one sequence, with the bits of a step for each of them.
constexpr int32_t kCausalAttentionTokens = 8;
struct CausalAttentionTokens {
  CausalAttentionStep step;  // rows = 1; q, k, v and position [tokens, …], y [tokens + padding, …]
  int64_t tokens = 1;
  int64_t padding = 0;          // rows of y that repeat its last token
  void* kept_k_ring = nullptr;  // [tokens − 1, capacity, kv_heads, head_dim], the ring after each token but the last; may be null
  void* kept_v_ring = nullptr;  // null where kept_k_ring is
};

namespace cpu {
// Bytes of scratch that the call needs (0: no scratch).
int64_t causal_attention_scratch(const CausalAttention&);
Status causal_attention_forward(const CausalAttention&, void* scratch);
int64_t causal_attention_backward_scratch(const CausalAttentionBackward&);
Status causal_attention_backward(const CausalAttentionBackward&, void* scratch);
// A row's output bits do not depend on the other rows.
Status causal_attention_step(const CausalAttentionStep&);
}  // namespace cpu

namespace cuda {
// Supported: bf16 on Hopper with head_dim a multiple of 8 and pointers and strides aligned to 16 bytes; fp32 from sm_80 on. head_dim ≤ 128.
bool causal_attention_supports(const CausalAttention&);
int64_t causal_attention_scratch(const CausalAttention&);
Status causal_attention_forward(const CausalAttention&, void* scratch, Queue);
int64_t causal_attention_backward_scratch(const CausalAttentionBackward&);
Status causal_attention_backward(const CausalAttentionBackward&, void* scratch, Queue);
Status causal_attention_step(const CausalAttentionStep&, Queue);
Status causal_attention_tokens(const CausalAttentionTokens&, Queue);  // causal_attention_takes_tokens() (causal_attention_plan.h)
}  // namespace cuda

// A device's launchers, as above.
struct CausalAttentionLaunchers {
  bool (*supports)(const CausalAttention&);            // whether forward and backward compute this call
  int64_t (*forward_scratch)(const CausalAttention&);  // bytes
  Status (*forward)(const CausalAttention&, void* scratch, Queue);
  int64_t (*backward_scratch)(const CausalAttentionBackward&);
  Status (*backward)(const CausalAttentionBackward&, void* scratch, Queue);
  Status (*step)(const CausalAttentionStep&, Queue);
  bool (*step_fuses_rotary)(const CausalAttentionStep&);  // whether this step may have a rotary_base; null: none may
  bool joint_gradients;                                   // whether the gradients may be columns of one tensor
  bool (*step_takes_tokens)(const CausalAttentionStep&);  // causal_attention_takes_tokens; null: never
  Status (*step_tokens)(const CausalAttentionTokens&, Queue);
};

}  // namespace based::kernels
