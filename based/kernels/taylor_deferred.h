// Steps of Taylor attention that write no sums: a token's key and value wait beside the sums of its row and head, and a step reads both,
//   y_t = (Σ_f φ(q_t)_f S_f + Σ_i w(q_t·k_i) v_i) / (the same of the denominator),   i over those that wait and t itself.
// A step whose token makes kTaylorWaiting of them takes them in, one after the other, as the steps of algorithm 2 would have, bit for bit.
// So a step moves little more than half of what algorithm 2 does, since its time is that of reading and writing the sums.
#pragma once
#include "based/kernels/taylor_attention.h"

namespace based::kernels {

constexpr int kTaylorWaiting = 12;

struct TaylorDeferred {        // caller owns all memory
  TaylorAttention step;        // as for taylor_attention_step; its states are the sums of what does not wait
  void* waiting_k = nullptr;   // [slots, heads, kTaylorWaiting, feature_dim], of the type of q, scaled
  void* waiting_v = nullptr;   // [slots, heads, kTaylorWaiting, head_dim]
  int32_t* waiting = nullptr;  // [slots, heads], how many wait, 0 … kTaylorWaiting − 1
};

namespace cuda {
// Whether the kernel takes this shape: on Hopper, head_dim up to 128, head_dim and feature_dim of whole 16 bytes, and a state that fits
// into shared memory.
bool taylor_deferred_takes(const TaylorAttention&);
// Whether it does, and rows and heads are enough to keep all multiprocessors reading, so that it is faster than taylor_attention_step.
bool taylor_deferred_is_faster(const TaylorAttention&);
Status taylor_deferred_step(const TaylorDeferred&, Stream);
// The sums of `rows` slots take in what waits; q, k, v and y are not looked at.
Status taylor_deferred_settle(const TaylorDeferred&, Stream);
}  // namespace cuda

}  // namespace based::kernels
