// Softmax attention forward on Hopper for walks long enough to fill a pipeline: bf16, head_dim ≤ 64. One persistent block a multiprocessor
// owns 192 queries of a head at a time, 64 for each of three warpgroups, and walks over the tiles of 128 keys that they see, the last one
// first; one more warp deals out queries and brings tiles, so that the next walk's are there when one ends. The warpgroups take turns at
// the tensor cores: while one's products run, the others make weights. A warpgroup multiplies the weights of a tile and its values while it
// makes the weights of the next.
#include <algorithm>

#include "based/kernels/cuda/causal_deal.cuh"
#include "based/kernels/cuda/causal_forward_sm90.cuh"

namespace based::kernels::cuda::detail::causal {
namespace {

constexpr int kGroups = 3, kConsumers = kGroups * kGroup, kThreads = kConsumers + kGroup;
constexpr int kQueries = kGroups * kTile, kKeys = 2 * kTile;

// Shared memory: queries of this place and the next, the ring of keys and values, barriers.
struct Memory {
  static constexpr int kStages = 4;
  static constexpr uint32_t kQueryBytes = kGroups * kSlabBytes, kKeyBytes = 2 * kSlabBytes, kStageBytes = 2 * kKeyBytes;
  static constexpr uint32_t kRing = 2 * kQueryBytes, kBarriers = kRing + kStages * kStageBytes;
  static constexpr uint32_t kPlaceBarriers = kBarriers + 16 * kStages, kBytes = kPlaceBarriers + 2 * 24 + 1024;
};

#if BASED_HAS_WGMMA
// Registers of a thread of the warpgroups that own queries, and of the rest: 512 together.
constexpr int kOwnersRegisters = 160, kHelpersRegisters = 32;

// What was dealt out, and the barriers that say that it is there and that nobody needs it.
__device__ __forceinline__ Place& place_at(int slot) {
  __shared__ Place places[2];
  return places[slot];
}
__device__ __forceinline__ uint32_t place_here(int slot) { return shared_base() + Memory::kPlaceBarriers + 24 * slot; }
__device__ __forceinline__ uint32_t place_left(int slot) { return place_here(slot) + 8; }
__device__ __forceinline__ uint32_t queries_here(int slot) { return place_here(slot) + 16; }

using Ring = Walk<Memory::kStages>;

__device__ __forceinline__ void init_barriers() {
  for (int i = 0; i < 2; ++i) barrier_init(place_here(i), 32), barrier_init(place_left(i), kConsumers), barrier_init(queries_here(i));
  Ring::init(shared_base() + Memory::kBarriers, kConsumers / 32);
  fence_shared_proxy();
}

// What a block does for the queries of one place.
struct LongBlock {
  const CausalAttention& p;
  Place at;
  int slot, group, first_query, window;  // the warpgroup's first query
  Tiles own, all;                        // tiles of keys that this warpgroup sees, that some warpgroup sees

  __device__ __forceinline__ LongBlock(const CausalAttention& of, int place_slot) : p(of), at(place_at(place_slot)), slot(place_slot) {
    group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    at.head = warp_uniform(at.head), at.part = warp_uniform(at.part), at.queries = warp_uniform(at.queries),
    at.keys = warp_uniform(at.keys);
    first_query = at.part * kQueries + group * kTile, window = window_of(of);
    own = warp_uniform(tiles_of_keys<kKeys>(at, first_query, window)), all = tiles_of_keys<kKeys>(at, at.part * kQueries, window);
#pragma unroll
    for (int i = 1; i < kGroups; ++i) all = either(all, tiles_of_keys<kKeys>(at, at.part * kQueries + i * kTile, window));
    all = warp_uniform(all);
  }
  __device__ __forceinline__ uint32_t queries(int of) const { return shared_base() + slot * Memory::kQueryBytes + of * kSlabBytes; }
  __device__ __forceinline__ static uint32_t keys_at(const Stage& s) {
    return shared_base() + Memory::kRing + s.slot * Memory::kStageBytes;
  }
  __device__ __forceinline__ static uint32_t values_at(const Stage& s) { return keys_at(s) + Memory::kKeyBytes; }
};

// The warpgroups' turns at the tensor cores, one after the other, each as often as the others: their numbers of barriers are after those of
// group_barrier().
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1 + kGroups), "n"(2 * kGroup) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"((group + 1) % kGroups + 1 + kGroups), "n"(2 * kGroup) : "memory");
}

// Tiles that only other warpgroups see.
__device__ __forceinline__ void skip(Ring& ring, int group, int tiles) {
#pragma unroll 1
  for (; tiles > 0; --tiles, ring.advance()) {
    ring.wait(), ring.release(ring.stage);
    take_turn(group), pass_turn(group);
  }
}

__device__ __forceinline__ void multiply(float (&s)[64], uint32_t queries, uint32_t keys) {
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma_64x128x16_shared(s, part_of(queries, i * 32), part_of(keys, i * 32), i != 0);
  wgmma_commit();
}

// The same scores, for a warp alone.
__device__ __forceinline__ void multiply_again(float (&s)[64], uint32_t queries, uint32_t keys) {
  const int lane = threadIdx.x % 32, row = lane % 8;
  uint32_t q[4][4], k[4];
  load_tokens<1>(q, queries);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    float d[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ldmatrix(k, keys + (8 * j + row) * 128 + (((4 * i + lane / 8) ^ row) * 16));
      mma_16x8x16(d, q[2 * i], k[0], k[1]);
      mma_16x8x16(d, q[2 * i + 1], k[2], k[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[4 * j + i] = d[i];
  }
}

__device__ __forceinline__ void attend(Ring& ring, const LongBlock& block, uint32_t phase) {
  const Tiles own = block.own;
  const uint32_t queries = block.queries(block.group);
  const float scale = block.p.scale * kLog2e;
  const int diagonal = block.first_query + block.at.shift();
  skip(ring, block.group, block.all.last - own.last);
  Softmax softmax;
  float out[1][32] = {}, s[64], kept[2];
  uint32_t w[32];
  barrier_wait(queries_here(block.slot), phase);
  ring.wait();
  // The next row's queries too: what they are decides how the warp makes its weights, and so how this row's are rounded.
  const int row_queries = block.at.queries - block.first_query, keys = block.at.keys - own.last * kKeys;
  if (row_queries < kTile || keys < kKeys) {
    clear_rows<1>(queries, row_queries), clear_rows<1, kKeys>(block.values_at(ring.stage), keys), rows_are_cleared(block.group);
  }
  take_turn(block.group);
  wgmma_begin();
  multiply(s, queries, block.keys_at(ring.stage));
  pass_turn(block.group);
  wgmma_wait<0>();
  accumulator_fence(s);
  mask(s, diagonal - own.last * kKeys - block.window + 1, diagonal - own.last * kKeys);
  softmax.update(s, scale, kept);
  pack(w, s);
  Stage before = ring.stage;
  ring.advance();
  if (own.last > own.first) ring.wait();
#pragma unroll 1
  for (int tile = own.last - 1; tile >= own.first; --tile) {
    const Stage now = ring.stage;
    take_turn(block.group);
    wgmma_begin();
    multiply(s, queries, block.keys_at(now));
    add_weighted<1>(out, w, block.values_at(warp_uniform(before)));
    wgmma_commit();
    pass_turn(block.group);
    wgmma_wait<1>();
    accumulator_fence(s);
    const int high = diagonal - tile * kKeys, low = high - block.window + 1;
    // Every query has seen a key before.
    const bool inside = low <= 1 - kTile && high >= kKeys;
    bool done = true;
    if (inside) {
      done = softmax.add(s, scale);
    } else {
      mask(s, low, high);
      softmax.update(s, scale, kept);
    }
    accumulator_fence(s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    ring.advance();
    if (tile > own.first) ring.wait();
    wgmma_wait<0>();
    accumulator_fence_all(out), accumulator_fence(s);
    ring.release(before);
    if (!done) {
      multiply_again(s, queries, block.keys_at(now));
      softmax.update(s, scale, kept);
    }
    if ((!inside || !done) && __any_sync(~0U, kept[0] != 1.0F || kept[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 32; ++i) out[0][i] *= kept[i / 2 % 2];
    }
    pack(w, s);
    before = now;
  }
  wgmma_begin();
  add_weighted<1>(out, w, block.values_at(before));
  wgmma_commit();
  softmax.finish();
  wgmma_wait<0>();
  accumulator_fence_all(out);
  ring.release(before);
  skip(ring, block.group, own.first - block.all.first);
  group_barrier(block.group);  // nobody reads the queries any more: outputs go there
  write(block.p, block.at, block.first_query, queries, softmax, out);
  fence_shared_proxy();  // before TMA brings other queries there
}

// One thread: queries of a place, and the tiles of its walk.
__device__ __forceinline__ void bring(Stage& s, const LongBlock& block, const ForwardMaps& maps) {
  const Ring ring(shared_base() + Memory::kBarriers);
  const int query = static_cast<int>(block.at.q_begin) + block.at.part * kQueries, key = static_cast<int>(block.at.k_begin);
  const int kv_head = block.at.head / block.at.share;
  barrier_expect(queries_here(block.slot), Memory::kQueryBytes);
#pragma unroll 1
  for (int i = 0; i < kGroups; ++i) load_tile<1>(block.queries(i), maps.q, block.at.head, query + i * kTile, queries_here(block.slot));
#pragma unroll 1
  for (int tile = block.all.last; tile >= block.all.first; --tile, next<Memory::kStages>(s)) {
    const uint32_t here = ring.here(s);
    barrier_wait(ring.consumed(s), s.phase ^ 1);
    barrier_expect(here, Memory::kStageBytes);
    load_tile<1>(block.keys_at(s), maps.k, kv_head, key + tile * kKeys, here);
    load_tile<1>(block.values_at(s), maps.v, kv_head, key + tile * kKeys, here);
  }
}

// A warp deals places out to its block, one ahead.
__device__ __forceinline__ void deal(const CausalAttention& p, const Deck& deck, const ForwardMaps& maps) {
  LastPlace last;
  const bool one = threadIdx.x % 32 == 0;
  Stage stage;
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(place_left(slot), s.phase ^ 1);
    const bool more = take_place<kQueries, false>(p, deck, last, place_at(slot));
    if (one && !more) place_at(slot).head = -1;
    __syncwarp();  // its own lanes read the place, too
    barrier_arrive(place_here(slot));
    if (!more) return;
    const LongBlock block(p, slot);
    if (one) bring(stage, block, maps);
    __syncwarp();
  }
}
#endif

__global__ void __launch_bounds__(kThreads, 1)
    attend_queries(const __grid_constant__ CausalAttention p, const __grid_constant__ Deck deck, const __grid_constant__ ForwardMaps maps) {
#if BASED_HAS_WGMMA
  if (threadIdx.x == 0) init_barriers();
  __syncthreads();
  const int group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kHelpersRegisters));
    if (threadIdx.x / 32 == kConsumers / 32) deal(p, deck, maps);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kOwnersRegisters));
  Ring ring(shared_base() + Memory::kBarriers);
  if (group == kGroups - 1) pass_turn(group);
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(place_here(slot), s.phase);
    if (place_at(slot).head < 0) return;
    const LongBlock block(p, slot);
    if (block.own.first <= block.own.last) {
      attend(ring, block, s.phase);
    } else {
      skip(ring, group, block.all.last - block.all.first + 1);
    }
    barrier_arrive(place_left(slot));
  }
#else
  __trap();
#endif
}

}  // namespace

Status attend_long(const CausalAttention& p, int* ticket, Stream stream) {
  constexpr int64_t kCacheBytes = 24 << 20;
  const int64_t numbers = p.q_tokens / kQueries + p.rows, places = numbers * p.heads, share = p.heads / p.kv_heads;
  if (places > 1 << 30) return {"causal_attention: too many tokens for one launch"};
  const int64_t kv_heads = std::clamp<int64_t>(kCacheBytes / ((p.k_tokens / p.rows + 1) * 64 * 4), 1, p.kv_heads);
  const Deck deck{ticket, static_cast<int>(numbers), p.heads, static_cast<int>(kv_heads * share)};
  ForwardMaps maps;
  if (const Status s = describe(maps, p, kKeys); !s.ok()) return s;
  if (const cudaError_t e = allow_shared_memory(attend_queries, Memory::kBytes); e != cudaSuccess) return status_of(e);
  if (const cudaError_t e = cudaMemsetAsync(ticket, 0, sizeof(int), stream_of(stream)); e != cudaSuccess) return status_of(e);
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(places, multiprocessors())));
  attend_queries<<<blocks, kThreads, Memory::kBytes, stream_of(stream)>>>(p, deck, maps);
  return launched();
}

}  // namespace based::kernels::cuda::detail::causal
