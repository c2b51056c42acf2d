// Common code of the Hopper backward kernels for softmax attention.
#pragma once
#include "based/kernels/attention/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {

constexpr uint32_t kStatisticsBytes = kTile * 8;  // statistics of the queries of a tile

struct Maps {
  CUtensorMap q, k, v, dy;
};

// {log_sum_exp · log2 e, D} of each query, [heads, padded]. The tile with number n in find_part() starts at 64 n. Padding queries have {∞,
// 0}, so their weights are 0.
struct Statistics {
  float2* data;
  int64_t padded;

  // Index of a tile of a row's queries and head in `data`, in tiles; and the statistics of that tile.
  __device__ __forceinline__ int64_t tile_index(int head, const WorkItem& item, int tile) const {
    return head * (padded / kTile) + item.q_begin / kTile + item.row + tile;
  }
  __device__ __forceinline__ const float2* tile_data(int head, const WorkItem& item, int tile) const {
    return data + tile_index(head, item, tile) * kTile;
  }
};

// Scratch of the one-pass backward, in which blocks of keys accumulate dq: fp32 sums of dq for each tile of 64 queries, indexed by
// Statistics::tile_index(); for each tile, the number of blocks that have added to it; the ticket of the work queue.
struct Scratch {
  float4* dq = nullptr;
  int *turn = nullptr, *ticket = nullptr;
};

// Computes all gradients in one pass over the queries. Requires finished statistics, turns and ticket equal to 0, and head_dim ≤ 64.
Status backward_one_pass(const CausalAttentionBackward& b, const Maps& maps, const Statistics& statistics, const Scratch& scratch,
                         Queue queue);

#if BASED_HAS_WGMMA
// {log_sum_exp, D} of a tile's queries in shared memory, where queries are the columns of the scores.
struct ColumnStatistics {
  uint32_t address;
  __device__ __forceinline__ void load(int j, float (&log_sum_exp)[4], float (&d)[4]) const {
    const float4 x = load_shared_float4(address + (8 * j + 2 * (threadIdx.x % 4)) * 8);
    log_sum_exp[0] = log_sum_exp[2] = x.x, log_sum_exp[1] = log_sum_exp[3] = x.z, d[0] = d[2] = x.y, d[1] = d[3] = x.w;
  }
};

// A tile of query-key pairs of a warpgroup: s holds scores, then P; ds holds dy·v, then dS; p_bf16 and ds_bf16 are P and dS as operands.
struct Pairs {
  float s[32], ds[32];
  uint32_t p_bf16[16], ds_bf16[16];

  template <typename Statistics>
  __device__ __forceinline__ void compute_weights(float scale, const Statistics& statistics) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float x[4], d[4];
      statistics.load(j, x, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], scale, -x[i]));
    }
  }
  template <typename Statistics>
  __device__ __forceinline__ void compute_ds(const Statistics& statistics) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float x[4], d[4];
      statistics.load(j, x, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) ds[4 * j + i] = s[4 * j + i] * (ds[4 * j + i] - d[i]);
    }
    pack(p_bf16, s), pack(ds_bf16, ds);
  }
};

#endif

}  // namespace based::kernels::cuda::detail::causal
