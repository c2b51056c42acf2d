// Parts of the Hopper kernels for softmax attention (bf16, head_dim ≤ 128). A warpgroup owns 64 tokens of a row and of one head, and walks
// over the tokens that they attend over, or are attended by, in tiles of 64. The warpgroups of a block own neighbouring tokens and share
// the tiles, which TMA brings into a ring. Rows are read up to the end of their last tile. What belongs to the next row there
// is masked, and cleared where products multiply it by 0: 0 times what is not finite is NaN.
#pragma once
#include <algorithm>

#include "based/kernels/causal_attention.h"
#include "based/kernels/cuda/tensor_map.h"
#include "based/kernels/cuda/wgmma.cuh"

namespace based::kernels::cuda::detail::causal {

constexpr int kTile = 64;                     // tokens of a tile
constexpr uint32_t kSlabBytes = kTile * 128;  // a tile of 64 columns of a head
constexpr int kGroup = 128;                   // threads of a warpgroup
constexpr float kLog2e = 1.44269504088896341F, kLn2 = 0.693147180559945309F;
constexpr int kMostTokens = 1 << 29;  // so that positions and their differences fit in 32 bits
constexpr int kAllKeys = 1 << 30;     // a window that no row reaches

// In which order blocks work on the parts of `length` tokens of the rows. Parts are numbered so that row r owns numbers
// floor(start[r] / length) + r and on: a few numbers stay empty, and the host need not know the rows' lengths. Blocks that start one after
// the other belong to `together` rows, whose keys and values the L2 cache holds; of these, the longest walks come first. A grid is
// [sections of rows by parts, rows together, heads].
struct Order {
  uint32_t rows, parts;  // parts: numbers per row, on average and rounded up
  uint32_t together;
  int32_t share;  // query heads of a key head
  bool last_first;
};

inline Order make_order(const CausalAttention& p, int64_t tokens, int length, bool last_first) {
  constexpr int64_t kCacheBytes = 24 << 20, kMostTogether = 0xffff;
  const int64_t parts = ceil_div(tokens / length + p.rows, p.rows);
  const int64_t row_bytes = (p.q_tokens + p.k_tokens) / p.rows * p.kv_heads * p.head_dim * 2 + 1;
  const int64_t together = std::clamp(kCacheBytes / row_bytes, int64_t{1}, std::min(p.rows, kMostTogether));
  return {static_cast<uint32_t>(p.rows), static_cast<uint32_t>(parts), static_cast<uint32_t>(together), p.heads / p.kv_heads, last_first};
}
inline bool fits(const Order& o) { return ceil_div(o.rows, o.together) * o.parts <= 0xffff; }
inline dim3 grid_of(const Order& o, int heads) {
  return {static_cast<unsigned>(heads), o.together, static_cast<unsigned>(ceil_div(o.rows, o.together) * o.parts)};
}

using detail::warp_uniform;

// A block's part of a row.
struct Place {
  int64_t q_begin, k_begin;  // the row's first tokens
  int queries, keys;         // of the row
  int head, row, part, share;
  // Query i sees keys up to i + shift.
  __device__ __forceinline__ int shift() const { return keys - queries; }
};

// The part numbered `number`, of `length` tokens; false: there is none. Called by all threads. The row's thread passes on what it has
// loaded, so that only one load from memory has to be waited for.
template <int kLength, bool kOfKeys>
__device__ __forceinline__ bool find_part(const CausalAttention& p, uint32_t number, Place& place) {
  __shared__ int64_t found[4];
  int row = -1;
  for (int64_t base = 0; base < p.rows; base += blockDim.x) {
    const int64_t r = base + threadIdx.x;
    int64_t start[4] = {};
    if (r < p.rows) start[0] = p.q_start[r], start[1] = p.q_start[r + 1], start[2] = p.k_start[r], start[3] = p.k_start[r + 1];
    const auto first = [&](int64_t token, int64_t of_row) { return token / kLength + of_row; };
    const bool before = r < p.rows && first(start[kOfKeys ? 2 : 0], r) <= number;
    if (before && (r + 1 == p.rows || first(start[kOfKeys ? 3 : 1], r + 1) > number)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) found[i] = start[i];
    }
    const int count = __syncthreads_count(before);
    row += count;
    if (count < static_cast<int>(blockDim.x)) break;
  }
  if (row < 0) return false;
  place.row = warp_uniform(row);
  place.q_begin = found[0], place.k_begin = found[2];
  place.queries = warp_uniform(static_cast<int>(found[1] - found[0])), place.keys = warp_uniform(static_cast<int>(found[3] - found[2]));
  place.part = warp_uniform(static_cast<int>(number - (found[kOfKeys ? 2 : 0] / kLength + row)));
  return place.part * kLength < (kOfKeys ? place.keys : place.queries);
}

template <int kLength, bool kOfKeys>
__device__ __forceinline__ bool find_place(const CausalAttention& p, const Order& o, Place& place) {
  const uint32_t section = blockIdx.z / o.parts, part = blockIdx.z - section * o.parts, nth = section * o.together + blockIdx.y;
  place.head = static_cast<int>(blockIdx.x), place.share = o.share;
  return nth < o.rows && find_part<kLength, kOfKeys>(p, nth * o.parts + (o.last_first ? o.parts - 1 - part : part), place);
}

#if BASED_HAS_WGMMA
using Stage = RingPlace;

__device__ __forceinline__ Stage warp_uniform(const Stage& s) { return {warp_uniform(s.slot), s.phase}; }

// The next place of kCount.
template <int kCount>
__device__ __forceinline__ void next(Stage& s) {
  s.advance(kCount);
}

// Steps of a walk, whose operands pass through a ring of stages. The warpgroups of a block take the same steps, each at its own pace; the
// block's first thread requests a stage again two steps after its own warpgroup has used it, so that it seldom waits for the others.
template <int kStages>
struct Walk {
  static constexpr int kLag = 2;
  uint32_t barriers;  // two for each stage: it is here, it is consumed
  int steps = 0, step = 0;
  Stage stage, old;

  __device__ __forceinline__ explicit Walk(uint32_t at) : barriers(at) {}
  __device__ __forceinline__ uint32_t here(const Stage& s) const { return barriers + 16 * s.slot; }
  __device__ __forceinline__ uint32_t consumed(const Stage& s) const { return here(s) + 8; }
  __device__ __forceinline__ void wait() const { barrier_wait(here(stage), stage.phase); }
  // By every lane for itself: racecheck does not follow a warp's barrier to an arrival of one lane for all.
  __device__ __forceinline__ void release(const Stage& s) const { barrier_arrive(consumed(s)); }
  // One thread, before any other uses the barriers.
  __device__ __forceinline__ static void init(uint32_t barriers, int warps) {
    for (int i = 0; i < kStages; ++i) barrier_init(barriers + 16 * i), barrier_init(barriers + 16 * i + 8, 32 * warps);
  }
  // A warp for each stage requests the first steps.
  template <typename Request>
  __device__ __forceinline__ void start(int count, const Request& request) {
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
    steps = count;
    if (threadIdx.x % 32 == 0 && warp < min(kStages, steps)) request(warp, Stage{warp, 0});
  }
  // Once a step, when this warpgroup has released the stage of two steps ago; best where its products are under way.
  template <typename Request>
  __device__ __forceinline__ void refill(const Request& request) {
    if (step < kLag) return;
    if (threadIdx.x == 0 && step - kLag + kStages < steps) {
      barrier_wait(consumed(old), old.phase);
      request(step - kLag + kStages, old);
    }
    next(old);
  }
  __device__ __forceinline__ void advance() { next(stage), ++step; }
  __device__ __forceinline__ static void next(Stage& s) {
    causal::next<kStages>(s);
    s.slot = warp_uniform(s.slot);
  }
};

// Tiles [first, last] of the other side, if first ≤ last.
struct Tiles {
  int first, last;
};

__device__ __forceinline__ int window_of(const CausalAttention& p) {
  return p.window > 0 && p.window < kAllKeys ? static_cast<int>(p.window) : kAllKeys;
}

__device__ __forceinline__ Tiles warp_uniform(const Tiles& t) { return {warp_uniform(t.first), warp_uniform(t.last)}; }

// The tiles of kKeys keys that 64 queries from `query` on see, and the tiles of queries that see 64 keys from `key` on.
template <int kKeys = kTile>
__device__ __forceinline__ Tiles tiles_of_keys(const Place& at, int query, int window) {
  if (query >= at.queries) return {kAllKeys, -1};
  const int from = query + at.shift(), to = min(query + kTile, at.queries) - 1 + at.shift();
  return {max(from - window + 1, 0) / kKeys, to / kKeys};
}
__device__ __forceinline__ Tiles tiles_of_queries(const Place& at, int key, int window) {
  const int from = max(key - at.shift(), 0);
  const int to = min(min(key + kTile, at.keys) - 1 - at.shift(), at.queries - window) + window - 1;
  return key >= at.keys || from > to ? Tiles{kAllKeys, -1} : Tiles{from / kTile, to / kTile};
}
__device__ __forceinline__ Tiles either(const Tiles& a, const Tiles& b) { return {min(a.first, b.first), max(a.last, b.last)}; }

// A 64-token tile of a head.
template <int kSlabs>
__device__ __forceinline__ void load_tile(uint32_t shared, const CUtensorMap& map, int head, int64_t token, uint32_t barrier) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) load_heads(shared + slab * kSlabBytes, map, slab * 64, head, static_cast<int>(token), barrier);
}

// Zeros in rows [first, kRows) of a tile of kSlabs slabs, for what follows of the warpgroup `group`, which calls it with all its threads.
// Warpgroups that share the tile all do, each before it reads: what they write is the same.
template <int kSlabs, int kRows = kTile>
__device__ __forceinline__ void clear_rows(uint32_t tile, int first) {
#pragma unroll 1
  for (int unit = first * 8 + static_cast<int>(threadIdx.x) % kGroup; unit < kRows * 8; unit += kGroup) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) store_shared_16(tile + slab * (kRows * 128) + unit * 16, 0, 0, 0, 0);
  }
}
// Then, before the products.
__device__ __forceinline__ void rows_are_cleared(int group) { fence_shared_proxy(), group_barrier(group); }

// The part of a tile `bytes` after its start as an operand. The same as operand(tile + bytes, …), in fewer instructions for many parts.
__device__ __forceinline__ uint64_t part_of(uint32_t tile, uint32_t bytes) {
  constexpr uint64_t kRest = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;  // 128-byte swizzle, groups of 8 rows 1024 bytes apart
  return kRest | (((tile & 0x3ffff) >> 4) + (bytes >> 4));
}

// Sets to −∞ what lies outside low ≤ column − row ≤ high in a tile of scores, 64 rows by twice kCount columns.
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

// A tile's accumulators as the A operand of the next product.
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
    const uint32_t at = i / 4 * kSlabBytes + i % 4 * 32;
    wgmma_64x64x16_shared(d, part_of(a, at), part_of(b, at), i != 0);
  }
}

// The same with a in registers, and how it gets there.
template <int kSlabs>
__device__ __forceinline__ void load_tokens(uint32_t (&a)[4 * kSlabs][4], uint32_t tile) {
  const int lane = threadIdx.x % 32, row = 16 * (threadIdx.x / 32 % 4) + lane % 16;
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) ldmatrix(a[i], tile + i / 4 * kSlabBytes + row * 128 + (((i % 4 * 2 + lane / 16) ^ (row & 7)) * 16));
}
template <int kSlabs>
__device__ __forceinline__ void multiply_tokens(float (&d)[32], const uint32_t (&a)[4 * kSlabs][4], uint32_t b) {
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) wgmma_64x64x16<0>(d, a[i], part_of(b, i / 4 * kSlabBytes + i % 4 * 32), i != 0);
}

// d += w·b, b a tile of a head: four tokens for each word of w.
template <int kSlabs, int kWords>
__device__ __forceinline__ void add_weighted(float (&d)[kSlabs][32], const uint32_t (&w)[kWords], uint32_t b) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint32_t part[4] = {w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]};
      wgmma_64x64x16<1>(d[slab], part, part_of(b, slab * (kWords * 512) + i * 2048), true);
    }
  }
}

template <int kSlabs>
__device__ __forceinline__ void accumulator_fence_all(float (&d)[kSlabs][32]) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) accumulator_fence(d[slab]);
}

// Writes up to `rows` rows of accumulators, scaled, to `to` through a tile in shared memory of which each warp uses its own part.
template <int kSlabs>
__device__ __forceinline__ void store_tile(bf16* to, int64_t stride, int width, int rows, uint32_t tile, const float (&d)[kSlabs][32],
                                           float2 scale) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, matrix = lane / 8;
  const int row = 16 * warp + 8 * (matrix & 1) + lane % 8;
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* o = d[slab] + 4 * j;
      stmatrix(tile + slab * kSlabBytes + row * 128 + (((j + (matrix >> 1)) ^ (row & 7)) * 16), pack_bf16(o[0] * scale.x, o[1] * scale.x),
               pack_bf16(o[2] * scale.y, o[3] * scale.y), pack_bf16(o[4] * scale.x, o[5] * scale.x),
               pack_bf16(o[6] * scale.y, o[7] * scale.y));
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4 * kSlabs; ++i) {
    const int r = 16 * warp + i % 4 * 4 + lane / 8, unit = lane % 8, slab = i / 4;
    if (r < rows && slab * 64 + unit * 8 < width) {
      *reinterpret_cast<uint4*>(to + r * stride + slab * 64 + unit * 8) =
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
