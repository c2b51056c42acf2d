// Softmax attention, causal, over all keys or over a sliding window, with grouped heads (paper, section 4.2 and algorithm 3):
//   y_i = Σ_j softmax_j(scale·q_i·k_j) v_j,   i + Lk − Lq − window < j ≤ i + Lk − Lq
// for query i of Lq and key j of Lk ≥ Lq of a row: the queries are the row's last tokens, and `window` counts the keys seen, the token's
// own included. Query head h reads key head h / (heads / kv_heads). Blocked with running maxima: N x N scores never exist, and with a
// window the cost is proportional to it.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

// Weights of pairs are dropped after the softmax: y_i = Σ_j keep_ij/(1 − p) softmax_j v_j. The pair of query token i, counted over all
// rows, its head h and key j, counted within its row, is element (i·heads + h)·2^20 + j of dropout.h. CUDA in fp32 alone.
struct AttentionDropout {
  uint64_t seed = 0, place = 0;
  const int64_t* step = nullptr;  // [], on the device
  uint32_t threshold = 0;         // dropout_threshold(p); 0: nothing is dropped
  float scale = 1;                // 1/(1 − p)
};

struct CausalAttention {             // caller owns all memory
  const void* q = nullptr;           // [q_tokens, heads, head_dim]
  const void* k = nullptr;           // [k_tokens, kv_heads, head_dim]
  const void* v = nullptr;           // [k_tokens, kv_heads, head_dim]
  void* y = nullptr;                 // [q_tokens, heads, head_dim], contiguous
  float* log_sum_exp = nullptr;      // [q_tokens, heads], ln Σ_j exp(scale·q·k_j); kept for the backward; may be null
  const int64_t* q_start = nullptr;  // [rows + 1], queries of row r are q_start[r] .. q_start[r+1]
  const int64_t* k_start = nullptr;  // [rows + 1], keys of row r; at least as many as queries
  int64_t rows = 0;
  int64_t q_tokens = 0, k_tokens = 0;  // of all rows; what the CUDA kernels, which see no lengths on the host, are launched for
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from one token to the next
  int64_t window = 0;                                // 0: all keys
  int32_t heads = 0, kv_heads = 0, head_dim = 64;    // head_dim 1..256
  float scale = 1;
  DType dtype = DType::f32;  // of q, k, v, y; scores and sums are fp32
  bool single_tf32 = false;  // CUDA in fp32: products of operands rounded to TF32 (10 bits), else of operands split in two such parts
  AttentionDropout dropout = {};
};

// Gradients, the same bits on every run and for any number of threads. Forward's inputs, y and log_sum_exp are given again.
struct CausalAttentionBackward {
  CausalAttention forward;
  const void* grad_y = nullptr;  // [q_tokens, heads, head_dim], contiguous
  void* grad_q = nullptr;        // [q_tokens, heads, head_dim], contiguous
  void* grad_k = nullptr;        // [k_tokens, kv_heads, head_dim], contiguous
  void* grad_v = nullptr;        // [k_tokens, kv_heads, head_dim], contiguous
  // Elements from one token of a gradient to the next, for the CUDA kernels: the gradients may be parts of one tensor there.
  int64_t grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
};

// One token a row. The ring holds key p at p mod capacity; the new key, p = position[row], goes in, then the last min(p + 1, capacity) keys
// are attended over in the order of their positions, so a ring that was grown before it wrapped gives the same bits.
struct CausalAttentionStep {
  const void* q = nullptr;            // [rows, heads, head_dim]
  const void* k = nullptr;            // [rows, kv_heads, head_dim]
  const void* v = nullptr;            // [rows, kv_heads, head_dim]
  void* y = nullptr;                  // [rows, heads, head_dim], contiguous
  void* k_ring = nullptr;             // [slots, capacity, kv_heads, head_dim]
  void* v_ring = nullptr;             // [slots, capacity, kv_heads, head_dim]
  const int64_t* position = nullptr;  // [rows], of the row's token in its sequence: the keys before it
  const int64_t* slot = nullptr;      // [rows], no slot twice; null: row r uses slot r
  int64_t rows = 0, capacity = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from one row to the next
  int32_t heads = 0, kv_heads = 0, head_dim = 64;    // head_dim 1..256
  float scale = 1;
  DType dtype = DType::f32;       // of q, k, v, y
  DType ring_dtype = DType::f32;  // of both rings
  // CUDA: no kernel queued before this one that may still run writes the rings or slots, so they are read while it does. Positions may be
  // being written.
  bool ring_is_private = false;
  // CUDA, where causal_attention_step_fuses_rotary() (causal_attention_plan.h): q and k are first rotated as by Rotary (pointwise.h), all
  // of head_dim by halves; 0: not.
  double rotary_base = 0;
};

namespace cpu {
// Bytes of scratch that the call needs (0: none).
int64_t causal_attention_scratch(const CausalAttention&);
Status causal_attention_forward(const CausalAttention&, void* scratch);
int64_t causal_attention_backward_scratch(const CausalAttentionBackward&);
Status causal_attention_backward(const CausalAttentionBackward&, void* scratch);
// Bit for bit the same for a row whatever the other rows are.
Status causal_attention_step(const CausalAttentionStep&);
}  // namespace cpu

namespace cuda {
// bf16 on Hopper, head_dim a multiple of 8, everything aligned to 16 bytes; fp32 from sm_80 on. head_dim at most 128.
bool causal_attention_supports(const CausalAttention&);
int64_t causal_attention_scratch(const CausalAttention&);
Status causal_attention_forward(const CausalAttention&, void* scratch, Stream);
int64_t causal_attention_backward_scratch(const CausalAttentionBackward&);
Status causal_attention_backward(const CausalAttentionBackward&, void* scratch, Stream);
Status causal_attention_step(const CausalAttentionStep&, Stream);
}  // namespace cuda

}  // namespace based::kernels
