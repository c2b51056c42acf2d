// Decode steps of Taylor attention that defer the update of the state. A step appends its token's key and value to a short list of pending
// tokens of its row and head, and computes y from the state and from the pending tokens i (token t included):
//   y_t = (Σ_f φ(q_t)_f S_f + Σ_i w(q_t·k_i) v_i) / (Σ_f φ(q_t)_f z_f + Σ_i w(q_t·k_i)).
// The step that makes the list kTaylorPending long adds all pending tokens to the state, one after the other, with the operations of
// algorithm 2 in the same order, so the state is bit for bit that of algorithm 2. A step's time is that of moving the state; since most
// steps read it and do not write it, a step moves little more than half of the bytes of algorithm 2.
//
// With `rounded_state` the step that adds the pending tokens also writes S rounded to bf16, and the steps after it, up to the next that
// adds tokens, read that instead of S: half of the bytes. S itself stays fp32 and is only ever computed from S, so it has the same bits;
// y has the rounding of S in addition to its own.
#pragma once
#include <algorithm>

#include "based/kernels/common/gpu.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels {

constexpr int kTaylorPending = 12;
// A bit of TaylorDeferred::pending: `rounded_state` has this state's sums.
constexpr int32_t kTaylorRounded = 256;
// The number of pending tokens, given an element of TaylorDeferred::pending.
constexpr int taylor_pending_tokens(int32_t pending) { return pending & (kTaylorRounded - 1); }

struct TaylorDeferred {        // caller owns all memory
  TaylorAttention step;        // as for taylor_attention_step; its states do not yet contain the pending tokens
  void* pending_k = nullptr;   // [slots, heads, kTaylorPending, feature_dim], of q's type, already multiplied by step.scale
  void* pending_v = nullptr;   // [slots, heads, kTaylorPending, head_dim], of q's type
  int32_t* pending = nullptr;  // [slots, heads], number of pending tokens, 0 … kTaylorPending − 1, and kTaylorRounded
  // [slots, heads, features, head_dim], bf16: kv_state rounded to nearest, where kTaylorRounded is set. Code that writes kv_state by other
  // means must clear that bit. null: all steps read kv_state.
  void* rounded_state = nullptr;
};

// Layout of a block's shared memory, in this order: the state of a row and head, or in its halves the rounded states of this row and head
// and of the next; q, k and the pending keys of this row and head and of the next; the pending values, followed by the new token's; the
// warps' partial sums of y (reused for φ of kTokensPerPass keys); φ(q); the warps' partial sums of the denominator; the weights of the
// pending tokens; the index pairs of the features; the mbarriers of the copies.
struct TaylorDeferredLayout {
  static constexpr int kWarps = 8;
  static constexpr int kColumns = 4;        // columns of the state that a lane handles
  static constexpr int kMaxBlocks = 4;      // blocks of a multiprocessor: more would leave fewer than 64 registers a thread
  static constexpr int kTokensPerPass = 4;  // pending tokens that one pass over the state adds to it
  static_assert(kTaylorPending % kTokensPerPass == 0);

  int features, head_dim, feature_dim, element_bytes;  // element_bytes: of an element of q, k, v
  int64_t items;                                       // rows x heads

  constexpr TaylorDeferredLayout(int head_columns, int key_columns, int bytes, int64_t rows_and_heads)
      : features(static_cast<int>(packed_features(key_columns))),
        head_dim(head_columns),
        feature_dim(key_columns),
        element_bytes(bytes),
        items(rows_and_heads) {}
  explicit constexpr TaylorDeferredLayout(const TaylorAttention& p)
      : TaylorDeferredLayout(p.head_dim, p.feature_dim, static_cast<int>(dtype_size(p.dtype)), p.rows * p.heads) {}

  constexpr int state_bytes() const { return features * head_dim * 4; }
  constexpr int rounded_bytes() const { return features * head_dim * 2; }
  constexpr int k_bytes() const { return feature_dim * element_bytes; }
  constexpr int v_bytes() const { return head_dim * element_bytes; }
  constexpr int keys_bytes() const { return (2 + kTaylorPending) * k_bytes(); }  // q, k and the pending keys
  constexpr int keys_at() const { return state_bytes(); }
  constexpr int pending_v_at() const { return keys_at() + 2 * keys_bytes(); }
  constexpr int partial_at() const { return pending_v_at() + kTaylorPending * v_bytes(); }
  constexpr int phi_q_at() const { return partial_at() + std::max(kWarps * head_dim, kTokensPerPass * features) * 4; }
  constexpr int warp_sums_at() const { return phi_q_at() + features * 4; }
  constexpr int weights_at() const { return warp_sums_at() + kWarps * 4; }
  constexpr int pairs_at() const { return weights_at() + kTaylorPending * 4; }
  constexpr int barriers_at() const { return (pairs_at() + features * 2 + 7) / 8 * 8; }
  constexpr int shared_bytes() const { return barriers_at() + 2 * 8; }

  // Resident blocks of a multiprocessor.
  constexpr int blocks_that_fit(const Gpu& gpu) const {
    return std::min(kMaxBlocks, gpu.shared_bytes / (shared_bytes() + gpu.reserved_shared_bytes));
  }
};

// Whether the kernel supports this problem: a Hopper GPU, head_dim up to 128, head_dim and feature_dim of whole 16 bytes, and a state that
// fits into shared memory.
inline bool taylor_deferred_takes(const TaylorAttention& p, const Gpu& gpu) {
  const TaylorDeferredLayout layout(p);
  return gpu.runs_hopper_code && layout.k_bytes() % 16 == 0 && layout.v_bytes() % 16 == 0 && p.head_dim <= 32 * layout.kColumns &&
         p.feature_dim < 128 && layout.items <= 0x3fffffff && layout.blocks_that_fit(gpu) > 0 && aligned16(p.kv_state) && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v);
}
// Whether the kernel supports the problem and is faster than taylor_attention_step, as it is where rows x heads keep all multiprocessors
// reading.
inline bool taylor_deferred_is_faster(const TaylorAttention& p, const Gpu& gpu) {
  return taylor_deferred_takes(p, gpu) && p.rows * p.heads >= int64_t{TaylorDeferredLayout(p).blocks_that_fit(gpu)} * gpu.multiprocessors;
}

namespace cuda {
Status taylor_deferred_step(const TaylorDeferred&, Queue);
// Adds the pending tokens of the `rows` slots to their states, and clears kTaylorRounded. Does not read q, k and v, and does not write y.
Status taylor_deferred_flush(const TaylorDeferred&, Queue);
}  // namespace cuda

struct TaylorDeferredLaunchers {
  bool (*supports)(const TaylorAttention&);  // taylor_deferred_takes() on the current device
  Status (*step)(const TaylorDeferred&, Queue);
  Status (*flush)(const TaylorDeferred&, Queue);
};

}  // namespace based::kernels
