// Common code of the Hopper forward kernels for softmax attention.
#pragma once
#include <cmath>

#include "based/kernels/attention/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {

struct ForwardMaps {
  CUtensorMap q, k, v;
};

// Describes queries as tiles of 64 tokens, keys and values as tiles of `keys` tokens.
inline Status describe(ForwardMaps& maps, const CausalAttention& p, int keys) {
  if (const Status s = describe_heads(maps.q, p.q, p.q_tokens, p.q_stride, p.heads, p.head_dim, kTile); !s.ok()) return s;
  if (const Status s = describe_heads(maps.k, p.k, p.k_tokens, p.k_stride, p.kv_heads, p.head_dim, keys); !s.ok()) return s;
  return describe_heads(maps.v, p.v, p.k_tokens, p.v_stride, p.kv_heads, p.head_dim, keys);
}

#if BASED_HAS_WGMMA
// Online softmax of the two rows of a thread. Until finish(), `sum` covers only the thread's own columns. Weights are relative to `top`,
// which is raised to the row's maximum only when the maximum exceeds it by kSlack powers of two. So most tiles need no rescaling of the
// sums.
struct Softmax {
  static constexpr float kSlack = 8;
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Replaces scores by weights. `kept` returns the factor by which the caller must rescale its weighted sums.
  template <int kCount>
  __device__ __forceinline__ void update(float (&s)[kCount], float scale, float (&kept)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) largest = fmaxf(largest, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
      largest *= scale;
      const bool grown = largest > top[r] + kSlack;
      kept[r] = grown ? exp2_approx(top[r] - largest) : 1.0F;
      top[r] = grown ? largest : top[r];
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
  // As update(), without a search for the maximum, for scores that rarely exceed earlier ones by much: weights stay relative to `top`.
  // Returns false on all lanes of a warp if a weight may have overflowed. Then `sum` is unchanged, and the caller must recompute the scores
  // and call update().
  template <int kCount>
  __device__ __forceinline__ bool add(float (&s)[kCount], float scale) {
    constexpr float kMaxSum = 0x1p40F;
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
    if (__any_sync(~0U, !(total[0] < kMaxSum && total[1] < kMaxSum))) return false;
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

// Stores y and log_sum_exp of a warpgroup's queries. y passes through `tile` in shared memory; each warp uses its own rows of it.
template <int kSlabs>
__device__ __forceinline__ void write(const CausalAttention& p, const WorkItem& item, int first_query, uint32_t tile,
                                      const Softmax& softmax, const float (&out)[kSlabs][32]) {
  const int row = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4, rows = min(item.queries - first_query, kTile);
  const int64_t head = (item.q_begin + first_query) * p.heads + item.head;
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

// Long rows with head_dim ≤ 64, see causal_forward_long_sm90.cu. `ticket` is device memory for the work queue.
Status attend_long(const CausalAttention& p, int* ticket, Queue queue);

}  // namespace based::kernels::cuda::detail::causal
