// How a step of attention over a ring is shared out on Hopper: asked by its launcher, and when a step is planned.
#pragma once
#include "based/kernels/causal_attention.h"
#include "based/kernels/gpu.h"

namespace based::kernels {

// Of the streamed kernel: blocks of a row, warps of a block, a head each; no warps where it does not apply.
struct AttentionShare {
  static constexpr int kMostWarps = 16, kTileKeys = 16;
  static constexpr int kTurnBytes = 64 * 8;  // of a block: {cosine, sine} of each pair of a head
  int split = 1, warps = 0;
};

// head_dim in the steps of 16 of the kernel that takes it.
inline int attention_steps(const CausalAttentionStep& p) { return p.head_dim <= 64 ? 4 : p.head_dim <= 112 ? 7 : 8; }

inline bool has_whole_units(const CausalAttentionStep& p) {
  constexpr int kUnit = 8;
  return p.head_dim % kUnit == 0 && p.q_stride % kUnit == 0 && p.k_stride % kUnit == 0 && p.v_stride % kUnit == 0 && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v) && aligned16(p.k_ring) && aligned16(p.v_ring);
}

// Few rows: as many blocks as there are multiprocessors. No warps where the heads cannot be shared out so that a block's rings fit.
inline AttentionShare plan_streamed_attention(const CausalAttentionStep& p, const Gpu& gpu) {
  if (!gpu.runs_hopper_code || p.dtype != DType::bf16 || p.ring_dtype != DType::bf16 || p.head_dim <= 32 || p.head_dim > 128 ||
      !has_whole_units(p) || p.capacity > 0x3fffffff)
    return {};
  const int bytes_of_warp = attention_steps(p) * 2 * 2 * AttentionShare::kTileKeys * 32;
  const int most_bytes = gpu.shared_bytes - gpu.reserved_shared_bytes - AttentionShare::kTurnBytes;
  const auto fits = [&](int split) {
    return p.heads / split <= AttentionShare::kMostWarps && p.heads / split * bytes_of_warp <= most_bytes;
  };
  int split = 1;
  while (split < 8 && p.heads % (2 * split) == 0 && (!fits(split) || 2 * split * p.rows <= gpu.multiprocessors)) split *= 2;
  return {split, fits(split) ? p.heads / split : 0};
}

// Whether a kernel turns q and k by their positions, too: bf16 on Hopper, head_dim 64, 112 or 128.
inline bool causal_attention_step_fuses_rotary(const CausalAttentionStep& p, const Gpu& gpu) {
  return p.head_dim == 16 * attention_steps(p) && plan_streamed_attention(p, gpu).warps > 0;
}

}  // namespace based::kernels
