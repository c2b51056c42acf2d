// Parts that the kernels for softmax attention forward on Hopper share.
#pragma once
#include <cmath>

#include "based/kernels/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {

struct ForwardMaps {
  CUtensorMap q, k, v;
};

// Queries in tiles of 64 tokens, keys and values in tiles of `keys`.
inline Status describe(ForwardMaps& maps, const CausalAttention& p, int keys) {
  if (const Status s = describe_heads(maps.q, p.q, p.q_tokens, p.q_stride, p.heads, p.head_dim, kTile); !s.ok()) return s;
  if (const Status s = describe_heads(maps.k, p.k, p.k_tokens, p.k_stride, p.kv_heads, p.head_dim, keys); !s.ok()) return s;
  return describe_heads(maps.v, p.v, p.k_tokens, p.v_stride, p.kv_heads, p.head_dim, keys);
}

#if BASED_HAS_WGMMA
// The running softmax of a thread's two rows; sums are the thread's own columns' until the end. Weights are relative to `top`, which
// follows a row's maximum only when that has grown by kSlack powers of two: then most tiles leave the sums so far as they are.
struct Softmax {
  static constexpr float kSlack = 8;
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Scores become weights; `kept` is what the weighted sums so far are to be multiplied by.
  template <int kCount>
  __device__ __forceinline__ void update(float (&s)[kCount], float scale, float (&kept)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
      most *= scale;
      const bool grown = most > top[r] + kSlack;
      kept[r] = grown ? exp2_approx(top[r] - most) : 1.0F;
      top[r] = grown ? most : top[r];
      const float base = top[r] == -INFINITY ? 0.0F : top[r];
      float total = 0;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        float &a = s[4 * j + 2 * r], &b = s[4 * j + 2 * r + 1];
        a = exp2_approx(fmaf(a, scale, -base)), b = exp2_approx(fmaf(b, scale, -base));
        total += a + b;
      }
      sum[r] = fmaf(sum[r], kept[r], total);
    }
  }
  // For scores that are hardly ever far above those before: weights stay relative to `top`, and no maximum is looked for. False, on all
  // lanes of a warp: weights may have overflowed, and are not in the sums; the scores have to be made again, and given to update().
  template <int kCount>
  __device__ __forceinline__ bool add(float (&s)[kCount], float scale) {
    constexpr float kMost = 0x1p40F;
    float total[2] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float &a = s[4 * j + 2 * r], &b = s[4 * j + 2 * r + 1];
        a = exp2_approx(fmaf(a, scale, -top[r])), b = exp2_approx(fmaf(b, scale, -top[r]));
        total[r] += a + b;
      }
    }
    if (__any_sync(~0U, !(total[0] < kMost && total[1] < kMost))) return false;
    sum[0] += total[0], sum[1] += total[1];
    return true;
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    }
  }
};

// Writes y and log_sum_exp of a warpgroup's queries; y passes through `tile` in shared memory, of which each warp uses its own part.
template <int kSlabs>
__device__ __forceinline__ void write(const CausalAttention& p, const Place& at, int first_query, uint32_t tile, const Softmax& softmax,
                                      const float (&out)[kSlabs][32]) {
  const int row = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4, rows = min(at.queries - first_query, kTile);
  const int64_t head = (at.q_begin + first_query) * p.heads + at.head;
  if (p.log_sum_exp != nullptr && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r < rows) p.log_sum_exp[head + (row + 8 * r) * p.heads] = fmaf(softmax.top[r], kLn2, __logf(softmax.sum[r]));
    }
  }
  store_tile<kSlabs>(static_cast<bf16*>(p.y) + head * p.head_dim, int64_t{p.heads} * p.head_dim, p.head_dim, rows, tile, out,
                     make_float2(1 / softmax.sum[0], 1 / softmax.sum[1]));
}
#endif

// Long walks at head_dim ≤ 64, see causal_attention_forward_long_sm90.cu; `ticket` in device memory.
Status attend_long(const CausalAttention& p, int* ticket, Stream stream);

}  // namespace based::kernels::cuda::detail::causal
