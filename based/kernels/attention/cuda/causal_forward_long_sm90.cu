// Softmax attention forward on Hopper for loops long enough to fill a pipeline: bf16, head_dim ≤ 64. One persistent block per
// multiprocessor owns 192 queries of a head at a time, 64 for each of three warpgroups, and loops over the tiles of 128 keys that they
// attend to, from the last tile to the first. A producer warp takes work items from the queue and loads tiles, so the first tiles of the
// next item have arrived when the current one ends. The warpgroups take turns at the tensor cores: while the products of one run, the
// others compute weights. Within a warpgroup, the product of weights and values of a tile overlaps the weights of the next tile.
#include <algorithm>

#include "based/kernels/attention/cuda/causal_forward_sm90.cuh"
#include "based/kernels/attention/cuda/causal_work_queue.cuh"

namespace based::kernels::cuda::detail::causal {
namespace {

constexpr int kGroups = 3, kConsumers = kGroups * kGroup, kThreads = kConsumers + kGroup;
constexpr int kQueries = kGroups * kTile, kKeys = 2 * kTile;

// Shared memory: queries of this work item and the next, the ring of keys and values, barriers.
struct Layout {
  static constexpr int kStages = 4;
  static constexpr uint32_t kQueryBytes = kGroups * kSlabBytes, kKeyBytes = 2 * kSlabBytes, kStageBytes = 2 * kKeyBytes;
  static constexpr uint32_t kRing = 2 * kQueryBytes, kBarriers = kRing + kStages * kStageBytes;
  static constexpr uint32_t kItemBarriers = kBarriers + 16 * kStages, kBytes = kItemBarriers + 2 * 24 + 1024;
};

#if BASED_HAS_WGMMA
// Registers per thread of the warpgroups that own queries, and of the remaining warps. Summed over the four warpgroups: 512.
constexpr int kOwnerRegisters = 160, kProducerRegisters = 32;

// Two slots for work items, with three barriers each: the item is in its slot, all consumers have released the slot, the item's queries
// have arrived.
__device__ __forceinline__ WorkItem& item_at(int slot) {
  __shared__ WorkItem items[2];
  return items[slot];
}
__device__ __forceinline__ uint32_t item_full(int slot) { return shared_base() + Layout::kItemBarriers + 24 * slot; }
__device__ __forceinline__ uint32_t item_empty(int slot) { return item_full(slot) + 8; }
__device__ __forceinline__ uint32_t queries_full(int slot) { return item_full(slot) + 16; }

using KeyPipeline = Pipeline<Layout::kStages>;

__device__ __forceinline__ void init_barriers() {
  for (int i = 0; i < 2; ++i) barrier_init(item_full(i), 32), barrier_init(item_empty(i), kConsumers), barrier_init(queries_full(i));
  KeyPipeline::init(shared_base() + Layout::kBarriers, kConsumers / 32);
  fence_shared_proxy();
}

// A block's view of one work item.
struct LongBlock {
  const CausalAttention& p;
  WorkItem item;
  int slot, group, first_query, window;  // first_query: the warpgroup's first query in its row
  TileRange own, all;                    // tiles of keys that this warpgroup needs; tiles that any warpgroup needs

  __device__ __forceinline__ LongBlock(const CausalAttention& params, int item_slot)
      : p(params), item(item_at(item_slot)), slot(item_slot) {
    group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    item.head = warp_uniform(item.head), item.part = warp_uniform(item.part), item.queries = warp_uniform(item.queries),
    item.keys = warp_uniform(item.keys);
    first_query = item.part * kQueries + group * kTile, window = effective_window(params);
    own = warp_uniform(tiles_of_keys<kKeys>(item, first_query, window)), all = tiles_of_keys<kKeys>(item, item.part * kQueries, window);
#pragma unroll
    for (int i = 1; i < kGroups; ++i) all = cover(all, tiles_of_keys<kKeys>(item, item.part * kQueries + i * kTile, window));
    all = warp_uniform(all);
  }
  __device__ __forceinline__ uint32_t queries(int warpgroup) const {
    return shared_base() + slot * Layout::kQueryBytes + warpgroup * kSlabBytes;
  }
  __device__ __forceinline__ static uint32_t keys_at(const Stage& s) {
    return shared_base() + Layout::kRing + s.slot * Layout::kStageBytes;
  }
  __device__ __forceinline__ static uint32_t values_at(const Stage& s) { return keys_at(s) + Layout::kKeyBytes; }
};

// The warpgroups' turns at the tensor cores, in a fixed cycle, so all take the same number of turns. The named barriers follow those of
// group_barrier().
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1 + kGroups), "n"(2 * kGroup) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"((group + 1) % kGroups + 1 + kGroups), "n"(2 * kGroup) : "memory");
}

// Passes over tiles that only other warpgroups need.
__device__ __forceinline__ void skip(KeyPipeline& pipeline, int group, int tiles) {
#pragma unroll 1
  for (; tiles > 0; --tiles, pipeline.advance()) {
    pipeline.wait(), pipeline.release(pipeline.stage);
    take_turn(group), pass_turn(group);
  }
}

__device__ __forceinline__ void start_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma_64x128x16_shared(s, operand_at(queries, i * 32), operand_at(keys, i * 32), i != 0);
  wgmma_commit();
}

// Computes the same scores with mma instructions, which a single warp can execute.
__device__ __forceinline__ void recompute_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
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

__device__ __forceinline__ void attend(KeyPipeline& pipeline, const LongBlock& block, uint32_t phase) {
  const TileRange own = block.own;
  const uint32_t queries = block.queries(block.group);
  const float scale = block.p.scale * kLog2e;
  const int diagonal = block.first_query + block.item.shift();
  skip(pipeline, block.group, block.all.last - own.last);
  Softmax softmax;
  float out[1][32] = {}, s[64], kept[2];
  uint32_t w[32];
  barrier_wait(queries_full(block.slot), phase);
  pipeline.wait();
  // Queries past the end of the row are cleared too. Otherwise the next row's queries could decide whether the warp recomputes its scores,
  // and so how this row's weights are rounded.
  const int row_queries = block.item.queries - block.first_query, keys = block.item.keys - own.last * kKeys;
  if (row_queries < kTile || keys < kKeys) {
    clear_rows<1>(queries, row_queries), clear_rows<1, kKeys>(block.values_at(pipeline.stage), keys), rows_are_cleared(block.group);
  }
  take_turn(block.group);
  wgmma_begin();
  start_scores(s, queries, block.keys_at(pipeline.stage));
  pass_turn(block.group);
  wgmma_wait<0>();
  accumulator_fence(s);
  mask(s, diagonal - own.last * kKeys - block.window + 1, diagonal - own.last * kKeys);
  softmax.update(s, scale, kept);
  pack(w, s);
  Stage before = pipeline.stage;
  pipeline.advance();
  if (own.last > own.first) pipeline.wait();
#pragma unroll 1
  for (int tile = own.last - 1; tile >= own.first; --tile) {
    const Stage now = pipeline.stage;
    take_turn(block.group);
    wgmma_begin();
    start_scores(s, queries, block.keys_at(now));
    add_weighted<1>(out, w, block.values_at(warp_uniform(before)));
    wgmma_commit();
    pass_turn(block.group);
    wgmma_wait<1>();
    accumulator_fence(s);
    const int high = diagonal - tile * kKeys, low = high - block.window + 1;
    // Every query has already attended to a key, so `top` is finite.
    const bool inside = low <= 1 - kTile && high >= kKeys;
    bool added = true;
    if (inside) {
      added = softmax.add(s, scale);
    } else {
      mask(s, low, high);
      softmax.update(s, scale, kept);
    }
    accumulator_fence(s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    pipeline.advance();
    if (tile > own.first) pipeline.wait();
    wgmma_wait<0>();
    accumulator_fence_all(out), accumulator_fence(s);
    pipeline.release(before);
    if (!added) {
      recompute_scores(s, queries, block.keys_at(now));
      softmax.update(s, scale, kept);
    }
    if ((!inside || !added) && __any_sync(~0U, kept[0] != 1.0F || kept[1] != 1.0F)) {
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
  pipeline.release(before);
  skip(pipeline, block.group, own.first - block.all.first);
  group_barrier(block.group);  // all warps have finished reading the queries; their memory is reused for the outputs
  write(block.p, block.item, block.first_query, queries, softmax, out);
  fence_shared_proxy();  // orders these accesses before TMA writes the next queries there
}

// Called by one thread: loads the queries of a work item and all its tiles of keys and values.
__device__ __forceinline__ void load_item(Stage& s, const LongBlock& block, const ForwardMaps& maps) {
  const KeyPipeline pipeline(shared_base() + Layout::kBarriers);
  const int query = static_cast<int>(block.item.q_begin) + block.item.part * kQueries, key = static_cast<int>(block.item.k_begin);
  const int kv_head = block.item.head / block.item.heads_per_kv;
  barrier_expect(queries_full(block.slot), Layout::kQueryBytes);
#pragma unroll 1
  for (int i = 0; i < kGroups; ++i) load_tile<1>(block.queries(i), maps.q, block.item.head, query + i * kTile, queries_full(block.slot));
#pragma unroll 1
  for (int tile = block.all.last; tile >= block.all.first; --tile, next<Layout::kStages>(s)) {
    const uint32_t barrier = pipeline.full(s);
    barrier_wait(pipeline.empty(s), s.phase ^ 1);
    barrier_expect(barrier, Layout::kStageBytes);
    load_tile<1>(block.keys_at(s), maps.k, kv_head, key + tile * kKeys, barrier);
    load_tile<1>(block.values_at(s), maps.v, kv_head, key + tile * kKeys, barrier);
  }
}

// The producer warp: takes work items from the queue, one ahead of the consumers, and loads their tiles.
__device__ __forceinline__ void run_persistent(const CausalAttention& p, const WorkQueue& work, const ForwardMaps& maps) {
  RowHint hint;
  const bool elected = threadIdx.x % 32 == 0;
  Stage stage;
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(item_empty(slot), s.phase ^ 1);
    const bool more = pop_item<kQueries, false>(p, work, hint, item_at(slot));
    if (elected && !more) item_at(slot).head = -1;
    __syncwarp();  // this warp's own lanes read the item too
    barrier_arrive(item_full(slot));
    if (!more) return;
    const LongBlock block(p, slot);
    if (elected) load_item(stage, block, maps);
    __syncwarp();
  }
}
#endif

__global__ void __launch_bounds__(kThreads, 1)
    attend_queries(const __grid_constant__ CausalAttention p, const __grid_constant__ WorkQueue work,
                   const __grid_constant__ ForwardMaps maps) {
#if BASED_HAS_WGMMA
  if (threadIdx.x == 0) init_barriers();
  __syncthreads();
  const int group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (threadIdx.x / 32 == kConsumers / 32) run_persistent(p, work, maps);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kOwnerRegisters));
  KeyPipeline pipeline(shared_base() + Layout::kBarriers);
  if (group == kGroups - 1) pass_turn(group);
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(item_full(slot), s.phase);
    if (item_at(slot).head < 0) return;
    const LongBlock block(p, slot);
    if (block.own.first <= block.own.last) {
      attend(pipeline, block, s.phase);
    } else {
      skip(pipeline, group, block.all.last - block.all.first + 1);
    }
    barrier_arrive(item_empty(slot));
  }
#else
  __trap();
#endif
}

}  // namespace

Status attend_long(const CausalAttention& p, int* ticket, Queue queue) {
  constexpr int64_t kCacheBytes = 24 << 20;
  const int64_t parts = p.q_tokens / kQueries + p.rows, items = parts * p.heads, heads_per_kv = p.heads / p.kv_heads;
  if (items > 1 << 30) return {"causal_attention: too many tokens for one launch"};
  const int64_t kv_heads = std::clamp<int64_t>(kCacheBytes / ((p.k_tokens / p.rows + 1) * 64 * 4), 1, p.kv_heads);
  const WorkQueue work{ticket, static_cast<int>(parts), p.heads, static_cast<int>(kv_heads * heads_per_kv)};
  ForwardMaps maps;
  if (const Status s = describe(maps, p, kKeys); !s.ok()) return s;
  if (const cudaError_t e = allow_shared_memory(attend_queries, Layout::kBytes); e != cudaSuccess) return status_of(e);
  if (const cudaError_t e = cudaMemsetAsync(ticket, 0, sizeof(int), stream_of(queue)); e != cudaSuccess) return status_of(e);
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(items, multiprocessors())));
  attend_queries<<<blocks, kThreads, Layout::kBytes, stream_of(queue)>>>(p, work, maps);
  return launched();
}

}  // namespace based::kernels::cuda::detail::causal
