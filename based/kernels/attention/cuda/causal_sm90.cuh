// Common code of the Hopper kernels for softmax attention (bf16, head_dim ≤ 128). A warpgroup owns 64 tokens of a row and one head, and
// loops over the tokens that they attend to, or that attend to them, in tiles of 64. The warpgroups of a block own adjacent tokens and
// share the tiles, which TMA loads into a ring. The last tile of a row may extend into the next row. Scores of those tokens are masked.
// Where a product multiplies their values by 0, the values are cleared first, because 0 · NaN and 0 · ∞ are NaN.
#pragma once
#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/common/cuda/attention_blocks.cuh"
#include "based/kernels/common/cuda/tensor_map.h"
#include "based/kernels/common/cuda/wgmma.cuh"

namespace based::kernels::cuda::detail::causal {

constexpr int kTile = 64;                     // tokens per tile
constexpr uint32_t kSlabBytes = kTile * 128;  // bytes of a tile of 64 columns
constexpr int kGroup = 128;                   // threads of a warpgroup

using namespace attention_blocks;
using detail::warp_uniform;

#if BASED_HAS_WGMMA
using Stage = RingPlace;

__device__ __forceinline__ Stage warp_uniform(const Stage& s) { return {warp_uniform(s.slot), s.phase}; }

// Advances to the next of kCount slots.
template <int kCount>
__device__ __forceinline__ void next(Stage& s) {
  s.advance(kCount);
}

// A pipeline of loop steps whose operands pass through a ring of stages. The warpgroups of a block execute the same steps, each at its own
// pace. The block's first thread refills a stage two steps after its own warpgroup has used it, so it seldom waits for the others.
template <int kStages>
struct Pipeline {
  static constexpr int kLag = 2;
  uint32_t barriers;  // shared address of two barriers per stage: full (operands have arrived), empty (all warps have released it)
  int steps = 0, step = 0;
  Stage stage, refill_stage;  // the stage of this step; the stage that is refilled next

  __device__ __forceinline__ explicit Pipeline(uint32_t address) : barriers(address) {}
  __device__ __forceinline__ uint32_t full(const Stage& s) const { return barriers + 16 * s.slot; }
  __device__ __forceinline__ uint32_t empty(const Stage& s) const { return full(s) + 8; }
  __device__ __forceinline__ void wait() const { barrier_wait(full(stage), stage.phase); }
  // Every lane arrives: racecheck does not recognise the arrival of one lane on behalf of a warp after __syncwarp().
  __device__ __forceinline__ void release(const Stage& s) const { barrier_arrive(empty(s)); }
  // Called by one thread before any other uses the barriers.
  __device__ __forceinline__ static void init(uint32_t barriers, int warps) {
    for (int i = 0; i < kStages; ++i) barrier_init(barriers + 16 * i), barrier_init(barriers + 16 * i + 8, 32 * warps);
  }
  // Loads the first steps; one warp issues each stage.
  template <typename Request>
  __device__ __forceinline__ void start(int count, const Request& load_step) {
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
    steps = count;
    if (threadIdx.x % 32 == 0 && warp < min(kStages, steps)) load_step(warp, Stage{warp, 0});
  }
  // Called once per step, after this warpgroup has released the stage of two steps ago, preferably while its products are running.
  template <typename Request>
  __device__ __forceinline__ void refill(const Request& load_step) {
    if (step < kLag) return;
    if (threadIdx.x == 0 && step - kLag + kStages < steps) {
      barrier_wait(empty(refill_stage), refill_stage.phase);
      load_step(step - kLag + kStages, refill_stage);
    }
    next(refill_stage);
  }
  __device__ __forceinline__ void advance() { next(stage), ++step; }
  __device__ __forceinline__ static void next(Stage& s) {
    causal::next<kStages>(s);
    s.slot = warp_uniform(s.slot);
  }
};

// Tiles first .. last of the other side; empty if first > last.
struct TileRange {
  int first, last;
};

__device__ __forceinline__ int effective_window(const CausalAttention& p) {
  return p.window > 0 && p.window < kAllKeys ? static_cast<int>(p.window) : kAllKeys;
}

__device__ __forceinline__ TileRange warp_uniform(const TileRange& t) { return {warp_uniform(t.first), warp_uniform(t.last)}; }

// Tiles of kKeys keys that queries query .. query + 63 attend to, and tiles of queries that attend to keys key .. key + 63.
template <int kKeys = kTile>
__device__ __forceinline__ TileRange tiles_of_keys(const WorkItem& item, int query, int window) {
  if (query >= item.queries) return {kAllKeys, -1};
  const int first = query + item.shift(), last = min(query + kTile, item.queries) - 1 + item.shift();
  return {max(first - window + 1, 0) / kKeys, last / kKeys};
}
__device__ __forceinline__ TileRange tiles_of_queries(const WorkItem& item, int key, int window) {
  const int first = max(key - item.shift(), 0);
  const int last = min(min(key + kTile, item.keys) - 1 - item.shift(), item.queries - window) + window - 1;
  return key >= item.keys || first > last ? TileRange{kAllKeys, -1} : TileRange{first / kTile, last / kTile};
}
// The range that covers both.
__device__ __forceinline__ TileRange cover(const TileRange& a, const TileRange& b) { return {min(a.first, b.first), max(a.last, b.last)}; }

// Loads a 64-token tile of a head by TMA.
template <int kSlabs>
__device__ __forceinline__ void load_tile(uint32_t shared, const CUtensorMap& map, int head, int64_t token, uint32_t barrier) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) load_heads(shared + slab * kSlabBytes, map, slab * 64, head, static_cast<int>(token), barrier);
}

// Writes zeros to rows [first, kRows) of a tile of kSlabs slabs. Called by all threads of a warpgroup, which must call rows_are_cleared()
// before its products read the tile. Warpgroups that share a tile each clear it; they write the same zeros.
template <int kSlabs, int kRows = kTile>
__device__ __forceinline__ void clear_rows(uint32_t tile, int first) {
#pragma unroll 1
  for (int unit = first * 8 + static_cast<int>(threadIdx.x) % kGroup; unit < kRows * 8; unit += kGroup) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) store_shared_16(tile + slab * (kRows * 128) + unit * 16, 0, 0, 0, 0);
  }
}
// Makes the cleared rows visible to the warpgroup's products.
__device__ __forceinline__ void rows_are_cleared(int group) { fence_shared_proxy(), group_barrier(group); }

// Operand descriptor at byte offset `bytes` of a tile. Equal to operand(tile + bytes, …), but needs fewer instructions for many offsets.
__device__ __forceinline__ uint64_t operand_at(uint32_t tile, uint32_t bytes) {
  constexpr uint64_t kRest = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;  // 128-byte swizzle, groups of 8 rows 1024 bytes apart
  return kRest | (((tile & 0x3ffff) >> 4) + (bytes >> 4));
}

// Sets scores outside low ≤ column − row ≤ high to −∞ in a tile of 64 rows and 2 · kCount columns.
template <int kCount>
__device__ __forceinline__ void mask(float (&s)[kCount], int low, int high) {
  if (low <= 1 - kTile && high >= 2 * kCount - 1) return;
  const int offset = 2 * (threadIdx.x % 4) - (16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4);
  low -= offset, high -= offset;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int x = 8 * (i / 4) + (i & 1) - (i & 2 ? 8 : 0);
    s[i] = x >= low && x <= high ? s[i] : -INFINITY;
  }
}

// Packs a tile's accumulators as the A operand (bf16 in registers) of the next product.
template <int kWords>
__device__ __forceinline__ void pack(uint32_t (&w)[kWords], const float (&s)[2 * kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) w[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

// d = a·bᵀ, both 64-token tiles of a head in shared memory.
template <int kSlabs>
__device__ __forceinline__ void multiply_tokens(float (&d)[32], uint32_t a, uint32_t b) {
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) {
    const uint32_t bytes = i / 4 * kSlabBytes + i % 4 * 32;
    wgmma_64x64x16_shared(d, operand_at(a, bytes), operand_at(b, bytes), i != 0);
  }
}

// Loads a 64-token tile as an A operand in registers, and d = a·bᵀ with that operand.
template <int kSlabs>
__device__ __forceinline__ void load_tokens(uint32_t (&a)[4 * kSlabs][4], uint32_t tile) {
  const int lane = threadIdx.x % 32, row = 16 * (threadIdx.x / 32 % 4) + lane % 16;
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) ldmatrix(a[i], tile + i / 4 * kSlabBytes + row * 128 + (((i % 4 * 2 + lane / 16) ^ (row & 7)) * 16));
}
template <int kSlabs>
__device__ __forceinline__ void multiply_tokens(float (&d)[32], const uint32_t (&a)[4 * kSlabs][4], uint32_t b) {
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) wgmma_64x64x16<0>(d, a[i], operand_at(b, i / 4 * kSlabBytes + i % 4 * 32), i != 0);
}

// d += w·b, where b is a tile of a head with four tokens per word of w.
template <int kSlabs, int kWords>
__device__ __forceinline__ void add_weighted(float (&d)[kSlabs][32], const uint32_t (&w)[kWords], uint32_t b) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint32_t part[4] = {w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]};
      wgmma_64x64x16<1>(d[slab], part, operand_at(b, slab * (kWords * 512) + i * 2048), true);
    }
  }
}

template <int kSlabs>
__device__ __forceinline__ void accumulator_fence_all(float (&d)[kSlabs][32]) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) accumulator_fence(d[slab]);
}

// Stores up to `rows` rows of scaled accumulators to global memory, through a tile in shared memory. Each warp uses its own rows of the
// tile.
template <int kSlabs>
__device__ __forceinline__ void store_tile(bf16* out, int64_t stride, int width, int rows, uint32_t tile, const float (&d)[kSlabs][32],
                                           float2 scale) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, matrix = lane / 8;
  const int row = 16 * warp + 8 * (matrix & 1) + lane % 8;
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* x = d[slab] + 4 * j;
      stmatrix(tile + slab * kSlabBytes + row * 128 + (((j + (matrix >> 1)) ^ (row & 7)) * 16), pack_bf16(x[0] * scale.x, x[1] * scale.x),
               pack_bf16(x[2] * scale.y, x[3] * scale.y), pack_bf16(x[4] * scale.x, x[5] * scale.x),
               pack_bf16(x[6] * scale.y, x[7] * scale.y));
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) {
    const int r = 16 * warp + i % 4 * 4 + lane / 8, unit = lane % 8, slab = i / 4;
    if (r < rows && slab * 64 + unit * 8 < width) {
      *reinterpret_cast<uint4*>(out + r * stride + slab * 64 + unit * 8) =
          load_shared_16(tile + slab * kSlabBytes + r * 128 + ((unit ^ (r & 7)) * 16));
    }
  }
}

__device__ __forceinline__ uint32_t shared_base() {
  extern __shared__ uint8_t shared[];
  return (shared_address(shared) + 1023) & ~1023U;
}
#endif

}  // namespace based::kernels::cuda::detail::causal
