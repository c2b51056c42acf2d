// Steps of Taylor attention that write no sums: a token's key and value wait beside the sums of its row and head, and a step reads both,
//   y_t = (Σ_f φ(q_t)_f S_f + Σ_i w(q_t·k_i) v_i) / (the same of the denominator),   i over those that wait and t itself.
// A step whose token makes kTaylorPending of them takes them in, one after the other, as the steps of algorithm 2 would have, bit for bit.
// So a step moves little more than half of what algorithm 2 does, since its time is that of reading and writing the sums.
#pragma once
#include <algorithm>

#include "based/kernels/gpu.h"
#include "based/kernels/taylor_attention.h"

namespace based::kernels {

constexpr int kTaylorPending = 12;

struct TaylorDeferred {        // caller owns all memory
  TaylorAttention step;        // as for taylor_attention_step; its states are the sums of what does not wait
  void* pending_k = nullptr;   // [slots, heads, kTaylorPending, feature_dim], of the type of q, scaled
  void* pending_v = nullptr;   // [slots, heads, kTaylorPending, head_dim]
  int32_t* pending = nullptr;  // [slots, heads], how many wait, 0 … kTaylorPending − 1
};

// A block's shared memory, all of one row and head: the state, q, k, what waits with the token behind it, the warps' shares of y (or φ of
// some keys), φ(q), pairs of indices, the warps' shares of the denominator, weights of what waits, and the barrier of the copies.
struct TaylorDeferredPlace {
  static constexpr int kWarps = 8;
  static constexpr int kColumns = 4;     // of a state, that a lane has
  static constexpr int kMostBlocks = 4;  // of a multiprocessor: more would have fewer than 64 registers a thread
  static constexpr int kTogether = 4;    // tokens that a state takes in while its vectors are in registers
  static_assert(kTaylorPending % kTogether == 0);

  int features, head_dim, feature_dim, element;  // element: bytes of one of q, k, v
  int64_t items;                                 // rows x heads

  explicit constexpr TaylorDeferredPlace(const TaylorAttention& p)
      : features(static_cast<int>(packed_features(p.feature_dim))),
        head_dim(p.head_dim),
        feature_dim(p.feature_dim),
        element(static_cast<int>(dtype_size(p.dtype))),
        items(p.rows * p.heads) {}

  constexpr int state_bytes() const { return features * head_dim * 4; }
  constexpr int k_bytes() const { return feature_dim * element; }
  constexpr int v_bytes() const { return head_dim * element; }
  constexpr int q_at() const { return state_bytes(); }
  constexpr int k_at() const { return q_at() + k_bytes(); }
  constexpr int pending_k_at() const { return k_at() + k_bytes(); }
  constexpr int pending_v_at() const { return pending_k_at() + kTaylorPending * k_bytes(); }
  constexpr int partial_at() const { return pending_v_at() + kTaylorPending * v_bytes(); }
  constexpr int phi_q_at() const { return partial_at() + std::max(kWarps * head_dim, kTogether * features) * 4; }
  constexpr int warp_sums_at() const { return phi_q_at() + features * 4; }
  constexpr int weights_at() const { return warp_sums_at() + kWarps * 4; }
  constexpr int pairs_at() const { return weights_at() + kTaylorPending * 4; }
  constexpr int barrier_at() const { return (pairs_at() + features * 2 + 7) / 8 * 8; }
  constexpr int shared_bytes() const { return barrier_at() + 8; }

  // Blocks of a multiprocessor.
  constexpr int blocks_that_fit(const Gpu& gpu) const {
    return std::min(kMostBlocks, gpu.shared_bytes / (shared_bytes() + gpu.reserved_shared_bytes));
  }
};

// Whether the kernel takes this shape: on Hopper, head_dim up to 128, head_dim and feature_dim of whole 16 bytes, and a state that fits
// into shared memory.
inline bool taylor_deferred_takes(const TaylorAttention& p, const Gpu& gpu) {
  const TaylorDeferredPlace place(p);
  return gpu.runs_hopper_code && place.k_bytes() % 16 == 0 && place.v_bytes() % 16 == 0 && p.head_dim <= 32 * place.kColumns &&
         p.feature_dim < 128 && place.items <= 0x3fffffff && place.blocks_that_fit(gpu) > 0 && aligned16(p.kv_state) && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v);
}
// Whether it does, and rows and heads are enough to keep all multiprocessors reading, so that it is faster than taylor_attention_step.
inline bool taylor_deferred_is_faster(const TaylorAttention& p, const Gpu& gpu) {
  return taylor_deferred_takes(p, gpu) && p.rows * p.heads >= int64_t{TaylorDeferredPlace(p).blocks_that_fit(gpu)} * gpu.multiprocessors;
}

namespace cuda {
Status taylor_deferred_step(const TaylorDeferred&, Stream);
// The sums of `rows` slots take in what waits; q, k, v and y are not looked at.
Status taylor_deferred_flush(const TaylorDeferred&, Stream);
}  // namespace cuda

}  // namespace based::kernels
