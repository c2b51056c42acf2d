// Parts that the kernels for the gradients of softmax attention on Hopper share.
#pragma once
#include "based/kernels/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {

constexpr uint32_t kStatisticsBytes = kTile * 8;  // of a tile's queries

struct Maps {
  CUtensorMap q, k, v, dy;
};

// {log_sum_exp · log2 e, D} of each query, [heads, padded]: tile n of the numbering of find_part starts at 64 n. Queries that a tile lacks
// have {∞, 0}, so that their weights are 0.
struct Statistics {
  float2* at;
  int64_t padded;

  // The number of a row's tile of queries of a head, and its statistics.
  __device__ __forceinline__ int64_t tile(int head, const Place& row, int tile) const {
    return head * (padded / kTile) + row.q_begin / kTile + row.row + tile;
  }
  __device__ __forceinline__ const float2* of(int head, const Place& row, int nth) const { return at + tile(head, row, nth) * kTile; }
};

// For dq where blocks of keys add it up: its sums, 64 queries of a head after the other in the numbering of Statistics; how many blocks
// have added to them; how many parts of the work are taken.
struct Scratch {
  float4* dq = nullptr;
  int *turn = nullptr, *ticket = nullptr;
};

// All gradients by one walk over the queries, when the statistics are made, and turns and ticket are 0. head_dim ≤ 64.
Status gradients_at_once(const CausalAttentionBackward& b, const Maps& maps, const Statistics& statistics, const Scratch& scratch,
                         Stream stream);

#if BASED_HAS_WGMMA
// {log_sum_exp, D} of the queries of a tile by column of the scores, in shared memory.
struct ByColumn {
  uint32_t at;
  __device__ __forceinline__ void load(int j, float (&log_sum_exp)[4], float (&d)[4]) const {
    const float4 x = load_shared_float4(at + (8 * j + 2 * (threadIdx.x % 4)) * 8);
    log_sum_exp[0] = log_sum_exp[2] = x.x, log_sum_exp[1] = log_sum_exp[3] = x.z, d[0] = d[2] = x.y, d[1] = d[3] = x.w;
  }
};

// What a warpgroup knows of a tile: scores, then P; dy·v, then dS; both as operands.
struct Pairs {
  float s[32], ds[32];
  uint32_t p[16], g[16];

  template <typename Statistics>
  __device__ __forceinline__ void weigh(float scale, const Statistics& statistics) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float x[4], d[4];
      statistics.load(j, x, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], scale, -x[i]));
    }
  }
  template <typename Statistics>
  __device__ __forceinline__ void differentiate(const Statistics& statistics) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float x[4], d[4];
      statistics.load(j, x, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) ds[4 * j + i] = s[4 * j + i] * (ds[4 * j + i] - d[i]);
    }
    pack(p, s), pack(g, ds);
  }
};

#endif

}  // namespace based::kernels::cuda::detail::causal
