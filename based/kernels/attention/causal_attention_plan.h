// How the Hopper kernel divides a step of attention over a ring. Used by the launcher and when a decode step is planned.
#pragma once
#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/common/gpu.h"

namespace based::kernels {

// Launch shape of the streamed kernel. warps = 0 means that the kernel does not support the problem.
struct StreamedAttentionPlan {
  static constexpr int kMaxWarps = 16, kTileKeys = 16;
  static constexpr int kRotationBytes = 64 * 8;  // shared memory of a block: {cosine, sine} of each pair of a head
  int blocks_per_row = 1, warps = 0;             // blocks per row; warps per block, one head each
};

// Number of 16-column steps of the kernel instance that handles this head_dim.
inline int attention_steps(const CausalAttentionStep& p) { return p.head_dim <= 64 ? 4 : p.head_dim <= 112 ? 7 : 8; }

inline bool has_whole_vectors(const CausalAttentionStep& p) {
  constexpr int kVector = 8;
  return p.head_dim % kVector == 0 && p.q_stride % kVector == 0 && p.k_stride % kVector == 0 && p.v_stride % kVector == 0 &&
         aligned16(p.q) && aligned16(p.k) && aligned16(p.v) && aligned16(p.k_ring) && aligned16(p.v_ring);
}

// Splits the heads of a row over more blocks while the grid does not exceed the number of multiprocessors, or until a block's shared memory
// fits. More rows than multiprocessors have two blocks each, so that blocks overlap on a multiprocessor (four are slower). Returns warps =
// 0 if no split fits.
inline StreamedAttentionPlan plan_streamed_attention(const CausalAttentionStep& p, const Gpu& gpu) {
  if (!gpu.runs_hopper_code || p.dtype != DType::bf16 || p.ring_dtype != DType::bf16 || p.head_dim <= 32 || p.head_dim > 128 ||
      !has_whole_vectors(p) || p.capacity > 0x3fffffff)
    return {};
  const int bytes_per_warp = attention_steps(p) * 2 * 2 * StreamedAttentionPlan::kTileKeys * 32;
  const int max_bytes = gpu.shared_bytes - gpu.reserved_shared_bytes - StreamedAttentionPlan::kRotationBytes;
  const auto fits = [&](int blocks_per_row) {
    return p.heads / blocks_per_row <= StreamedAttentionPlan::kMaxWarps && p.heads / blocks_per_row * bytes_per_warp <= max_bytes;
  };
  int blocks_per_row = p.rows > gpu.multiprocessors && p.heads % 2 == 0 ? 2 : 1;
  while (blocks_per_row < 8 && p.heads % (2 * blocks_per_row) == 0 &&
         (!fits(blocks_per_row) || 2 * blocks_per_row * p.rows <= gpu.multiprocessors))
    blocks_per_row *= 2;
  return {blocks_per_row, fits(blocks_per_row) ? p.heads / blocks_per_row : 0};
}

// Whether the step's kernel also applies the rotary embedding to q and k: bf16 on Hopper, head_dim 64, 112 or 128.
inline bool causal_attention_step_fuses_rotary(const CausalAttentionStep& p, const Gpu& gpu) {
  return p.head_dim == 16 * attention_steps(p) && plan_streamed_attention(p, gpu).warps > 0;
}

// Whether causal_attention_tokens() has a kernel: the streamed one, whose warp reads and writes all keys of its head.
inline bool causal_attention_takes_tokens(const CausalAttentionStep& p, const Gpu& gpu) {
  return p.heads == p.kv_heads && plan_streamed_attention(p, gpu).warps > 0 &&
         (p.rotary_base == 0 || causal_attention_step_fuses_rotary(p, gpu));
}

}  // namespace based::kernels
