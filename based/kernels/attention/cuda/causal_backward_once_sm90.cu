// Softmax attention backward on Hopper that computes the scores once: bf16, head_dim ≤ 64, for loops long enough to fill a pipeline. A
// block owns 128 keys of a head at a time and loops over the queries that attend to them, starting at the diagonal:
//   two warpgroups, 64 keys each   Sᵀ, (dy vᵀ)ᵀ ──► P, dS ──► dv += Pᵀ dy, dk += dSᵀ q
//   one warpgroup                  dSᵀ, through shared memory ──► dqᵀ = kᵀ dSᵀ of the tile
//   four warps                     one takes keys from the work queue and loads tiles; three add dq to the sums in memory
// Blocks add their parts of a tile's dq in turn, later keys first, so the order of each sum is fixed. The queue issues keys in the same
// order. Hence a block only ever waits for blocks that have already started. It seldom waits long, since blocks of later keys process fewer
// queries before the tile.
#include <algorithm>

#include "based/kernels/attention/cuda/causal_backward_sm90.cuh"
#include "based/kernels/attention/cuda/causal_work_queue.cuh"

namespace based::kernels::cuda::detail::causal {
namespace {

constexpr int kGroups = 2, kKeys = kGroups * kTile;  // warpgroups that own keys
constexpr int kThreads = (kGroups + 2) * kGroup;
constexpr int kDsSlots = 2;       // buffers for dS per such warpgroup
constexpr int kReducerWarps = 3;  // warps that add dq to the sums, with one dq buffer each; one more warp is the producer

// Shared memory: owned keys and values of this work item and the next, the ring of q and dy, dS, dq, statistics of the ring's queries,
// barriers.
struct Layout {
  static constexpr int kStages = 4;
  static constexpr uint32_t kOwnBytes = kGroups * 2 * kSlabBytes, kStageBytes = 2 * kSlabBytes, kDqBytes = 2 * kSlabBytes;
  static constexpr uint32_t kRing = 2 * kOwnBytes, kDs = kRing + kStages * kStageBytes;
  static constexpr uint32_t kDq = kDs + kGroups * kDsSlots * kSlabBytes, kStatistics = kDq + kReducerWarps * kDqBytes;
  static constexpr uint32_t kBarriers = kStatistics + kStages * kStatisticsBytes, kDsBarriers = kBarriers + 16 * kStages;
  static constexpr uint32_t kDqBarriers = kDsBarriers + 16 * kGroups * kDsSlots, kItemBarriers = kDqBarriers + 16 * kReducerWarps;
  static constexpr uint32_t kBytes = kItemBarriers + 2 * 24 + 1024;
};

struct Arguments {
  CausalAttentionBackward b;
  Maps maps;
  Statistics statistics;
  Scratch scratch;
  WorkQueue work;  // parts are kKeys keys; heads_in_cache is chosen so that the L2 cache holds the dq sums of these heads
};

#if BASED_HAS_WGMMA
constexpr int kItemReaders = 4 * (kGroups + 1) + kReducerWarps;  // warps that read a work item
// Registers per thread of the warpgroups that own keys, of the warpgroup that computes dq, and of the other four warps. Summed over the
// four warpgroups: 512.
constexpr int kOwnerRegisters = 208, kDqRegisters = 64, kHelperRegisters = 32;

// Shared addresses of the buffers for dS of a warpgroup, for dq and for work items. Each has a barrier for "full" (data has been written)
// and one for "empty" (all readers have finished).
__device__ __forceinline__ uint32_t ds_at(int group, int slot) {
  return shared_base() + Layout::kDs + (group * kDsSlots + slot) * kSlabBytes;
}
__device__ __forceinline__ uint32_t ds_full(int group, int slot) {
  return shared_base() + Layout::kDsBarriers + 16 * (group * kDsSlots + slot);
}
__device__ __forceinline__ uint32_t ds_empty(int group, int slot) { return ds_full(group, slot) + 8; }
__device__ __forceinline__ uint32_t dq_at(int slot) { return shared_base() + Layout::kDq + slot * Layout::kDqBytes; }
__device__ __forceinline__ uint32_t dq_full(int slot) { return shared_base() + Layout::kDqBarriers + 16 * slot; }
__device__ __forceinline__ uint32_t dq_empty(int slot) { return dq_full(slot) + 8; }
__device__ __forceinline__ WorkItem& item_at(int slot) {
  __shared__ WorkItem items[2];
  return items[slot];
}
__device__ __forceinline__ uint32_t item_full(int slot) { return shared_base() + Layout::kItemBarriers + 24 * slot; }
__device__ __forceinline__ uint32_t item_empty(int slot) { return item_full(slot) + 8; }
__device__ __forceinline__ uint32_t owned_full(int slot) { return item_full(slot) + 16; }  // the item's keys and values have arrived

__device__ __forceinline__ void init_barriers() {
  for (int i = 0; i < kGroups * kDsSlots; ++i) barrier_init(ds_full(0, i), 4), barrier_init(ds_empty(0, i), 4);
  for (int i = 0; i < kReducerWarps; ++i) barrier_init(dq_full(i), 4), barrier_init(dq_empty(i));
  for (int i = 0; i < 2; ++i) barrier_init(item_full(i), 32), barrier_init(item_empty(i), 32 * kItemReaders), barrier_init(owned_full(i));
  Pipeline<Layout::kStages>::init(shared_base() + Layout::kBarriers, kGroups * 4);
  fence_shared_proxy();
}

// A block's view of one work item.
struct OnePassBlock {
  const Arguments& a;
  const CausalAttention& p;
  WorkItem item;
  int slot, group, first, window;  // first: the warpgroup's first key in its row
  TileRange own[kGroups], all;     // tiles of queries that each warpgroup needs; tiles that any warpgroup needs

  __device__ __forceinline__ OnePassBlock(const Arguments& arguments, int item_slot)
      : a(arguments), p(arguments.b.forward), item(item_at(item_slot)), slot(item_slot) {
    group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    item.head = warp_uniform(item.head), item.part = warp_uniform(item.part), item.queries = warp_uniform(item.queries),
    item.keys = warp_uniform(item.keys);
    first = item.part * kKeys + group * kTile, window = effective_window(p);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) own[i] = warp_uniform(tiles_of_queries(item, item.part * kKeys + i * kTile, window));
    all = warp_uniform(cover(own[0], own[1]));
  }
  __device__ __forceinline__ int count() const { return max(all.last - all.first + 1, 0); }
  __device__ __forceinline__ uint32_t own_tile(int warpgroup, int operand) const {
    return shared_base() + slot * Layout::kOwnBytes + (warpgroup * 2 + operand) * kSlabBytes;
  }
  // Shared address of q (operand 0) or dy (1) of a stage.
  __device__ __forceinline__ static uint32_t tile(const Stage& s, int operand) {
    return shared_base() + Layout::kRing + (2 * s.slot + operand) * kSlabBytes;
  }
  __device__ __forceinline__ static uint32_t statistics_at(const Stage& s) {
    return shared_base() + Layout::kStatistics + s.slot * kStatisticsBytes;
  }
};

// The loop of all consumer warps: calls work(block, phase) for one work item after another.
template <typename Work>
__device__ __forceinline__ void for_each_item(const Arguments& a, const Work& work) {
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(item_full(slot), s.phase);
    if (item_at(slot).head < 0) return;
    work(OnePassBlock(a, slot), s.phase);
    barrier_arrive(item_empty(slot));
  }
}

// State of a warpgroup that owns keys: its positions in the ring of queries and in its dS buffers; its gradient sums and its values as an
// operand.
struct OwnerState {
  Pipeline<Layout::kStages> pipeline;
  Stage ds_slot;
};
struct KeyGradients {
  float grad_k[1][32] = {}, grad_v[1][32] = {};
  uint32_t v[4][4];
};

__device__ __forceinline__ void start_scores(const OnePassBlock& block, const KeyGradients& sum, Pairs& pairs, const Stage& stage) {
  multiply_tokens<1>(pairs.s, block.own_tile(block.group, 0), block.tile(stage, 0));
  wgmma_commit();
  multiply_tokens<1>(pairs.ds, sum.v, block.tile(stage, 1));
  wgmma_commit();
}
__device__ __forceinline__ void start_gradients(const OnePassBlock& block, KeyGradients& sum, const Pairs& pairs, const Stage& stage) {
  add_weighted<1>(sum.grad_v, pairs.p_bf16, block.tile(stage, 1));
  add_weighted<1>(sum.grad_k, pairs.ds_bf16, block.tile(stage, 0));
  wgmma_commit();
}
__device__ __forceinline__ void compute_weights(const OnePassBlock& block, int tile, Pairs& pairs, const Stage& stage) {
  const int distance = block.first - block.item.shift() - tile * kTile;
  mask(pairs.s, distance, distance + block.window - 1);
  pairs.compute_weights(block.p.scale * kLog2e, ColumnStatistics{block.statistics_at(stage)});
}
// Passes dS of a tile to the warpgroup that computes dq.
__device__ __forceinline__ void publish_ds(const OnePassBlock& block, const uint32_t (&ds)[16], Stage& stage) {
  barrier_wait(ds_empty(block.group, stage.slot), stage.phase ^ 1);
  const int lane = threadIdx.x % 32, matrix = lane / 8, row = 16 * (threadIdx.x / 32 % 4) + 8 * (matrix & 1) + lane % 8;
  const uint32_t address = ds_at(block.group, stage.slot) + row * 128;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    stmatrix(address + (((j + (matrix >> 1)) ^ (row & 7)) * 16), ds[2 * j], ds[2 * j + 1], ds[2 * j + 2], ds[2 * j + 3]);
  }
  fence_shared_proxy();
  __syncwarp();
  if (lane == 0) barrier_arrive(ds_full(block.group, stage.slot));
  next<kDsSlots>(stage);
}
// Passes over tiles that only the other warpgroup needs; publishes zeros as their dS.
__device__ __forceinline__ void skip(OwnerState& state, const OnePassBlock& block, int tiles) {
  const uint32_t zeros[16] = {};
#pragma unroll 1
  for (; tiles > 0; --tiles, state.pipeline.advance()) {
    state.pipeline.wait(), state.pipeline.release(state.pipeline.stage);
    publish_ds(block, zeros, state.ds_slot);
  }
}

// Waits for q and dy of tile `tile` and clears their rows past the end of the row.
__device__ __forceinline__ void wait(const OwnerState& state, const OnePassBlock& block, int tile) {
  state.pipeline.wait();
  if (const int rows = block.item.queries - tile * kTile; rows < kTile) {
    clear_rows<1>(block.tile(state.pipeline.stage, 0), rows), clear_rows<1>(block.tile(state.pipeline.stage, 1), rows);
    rows_are_cleared(block.group);
  }
}

// Loops over the warpgroup's tiles. While the weights of one tile are computed, its product dy·v and the gradient products of the previous
// tile run.
__device__ __forceinline__ void add_tiles(OwnerState& state, const OnePassBlock& block, const TileRange& own, KeyGradients& sum) {
  Pairs pairs;
  skip(state, block, own.first - block.all.first);
  wait(state, block, own.first);
  Stage before = state.pipeline.stage;
  wgmma_begin();
  start_scores(block, sum, pairs, before);
  wgmma_wait<1>();
  accumulator_fence(pairs.s);
  compute_weights(block, own.first, pairs, before);
  wgmma_wait<0>();
  accumulator_fence(pairs.ds);
  pairs.compute_ds(ColumnStatistics{block.statistics_at(before)});
  state.pipeline.advance();
  if (own.first < own.last) wait(state, block, own.first + 1);
  for (int tile = own.first + 1; tile <= own.last; ++tile) {
    const Stage now = state.pipeline.stage;
    wgmma_begin();
    start_scores(block, sum, pairs, now);
    start_gradients(block, sum, pairs, warp_uniform(before));
    publish_ds(block, pairs.ds_bf16, state.ds_slot);  // here, while the products for the scores run
    wgmma_wait<2>();
    accumulator_fence(pairs.s);
    compute_weights(block, tile, pairs, now);
    accumulator_fence(pairs.s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    state.pipeline.advance();
    if (tile < own.last) wait(state, block, tile + 1);
    wgmma_wait<0>();
    accumulator_fence(pairs.s), accumulator_fence(pairs.ds), accumulator_fence_all(sum.grad_k), accumulator_fence_all(sum.grad_v);
    state.pipeline.release(before);
    pairs.compute_ds(ColumnStatistics{block.statistics_at(now)});
    before = now;
  }
  wgmma_begin();
  start_gradients(block, sum, pairs, before);
  publish_ds(block, pairs.ds_bf16, state.ds_slot);
  wgmma_wait<0>();
  accumulator_fence_all(sum.grad_k), accumulator_fence_all(sum.grad_v);
  state.pipeline.release(before);
  skip(state, block, block.all.last - own.last);
}

__device__ __forceinline__ void write(const OnePassBlock& block, void* gradient, int64_t stride, float scale, const float (&d)[1][32]) {
  const int64_t token = block.item.k_begin + block.first;
  store_tile<1>(static_cast<bf16*>(gradient) + token * stride + block.item.head * block.p.head_dim, stride, block.p.head_dim,
                min(block.item.keys - block.first, kTile), block.own_tile(block.group, 1), d, make_float2(scale, scale));
}

__device__ __forceinline__ void compute_dk_dv(OwnerState& state, const OnePassBlock& block, uint32_t phase) {
  const CausalAttentionBackward& b = block.a.b;
  const TileRange own = block.group == 0 ? block.own[0] : block.own[1];
  KeyGradients sum;
  barrier_wait(owned_full(block.slot), phase);
  if (const int keys = max(block.item.keys - block.first, 0); keys < kTile) {  // dq sums over all keys of the tile, so padding must be 0
    clear_rows<1>(block.own_tile(block.group, 0), keys), clear_rows<1>(block.own_tile(block.group, 1), keys);
    rows_are_cleared(block.group);
  }
  load_tokens<1>(sum.v, block.own_tile(block.group, 1));
  for (int i = 0; i < block.item.heads_per_kv; ++i) {
    if (own.first <= own.last) {
      add_tiles(state, block, own, sum);
    } else {
      skip(state, block, block.count());
    }
  }
  group_barrier(block.group);  // all warps have finished reading the owned values; their memory is reused for the gradients
  write(block, b.grad_k, b.grad_k_stride, block.p.scale, sum.grad_k);
  __syncwarp();
  write(block, b.grad_v, b.grad_v_stride, 1.0F, sum.grad_v);
  fence_shared_proxy();  // orders these accesses before TMA writes the next values there
}

// Iterates over the tiles of queries of each head that reads the block's keys.
struct QueryTiles {
  int first, last, heads, head, tile;
  __device__ __forceinline__ explicit QueryTiles(const OnePassBlock& block) : first(block.all.first), last(block.all.last) {
    head = block.item.head * block.item.heads_per_kv, heads = first <= last ? block.item.heads_per_kv : 0, tile = first;
  }
  __device__ __forceinline__ bool more() const { return heads > 0; }
  __device__ __forceinline__ void next() {
    if (++tile > last) tile = first, ++head, --heads;
  }
};

// Called by the warpgroup that computes dq. `ds_stage` and `dq_stage` are its positions in the dS and dq buffers.
__device__ __forceinline__ void compute_dq(Stage& ds_stage, Stage& dq_stage, const OnePassBlock& block, uint32_t phase) {
  barrier_wait(owned_full(block.slot), phase);
#pragma unroll 1
  for (QueryTiles i(block); i.more(); i.next(), next<kDsSlots>(ds_stage), next<kReducerWarps>(dq_stage)) {
    float d[32];
    const int slot = warp_uniform(ds_stage.slot);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) barrier_wait(ds_full(group, slot), ds_stage.phase);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < 4 * kGroups; ++j) {
      const uint32_t bytes = j % 4 * 2048;
      wgmma_64x64x16_shared<1>(d, operand_at(block.own_tile(j / 4, 0), bytes), operand_at(ds_at(j / 4, slot), bytes), j > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    accumulator_fence(d);
    if (threadIdx.x % 32 == 0) barrier_arrive(ds_empty(0, slot)), barrier_arrive(ds_empty(1, slot));
    barrier_wait(dq_empty(dq_stage.slot), dq_stage.phase ^ 1);
    const uint32_t address = dq_at(dq_stage.slot) + threadIdx.x % kGroup * 16;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      store_shared_16(address + j * kGroup * 16, __float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1]), __float_as_uint(d[4 * j + 2]),
                      __float_as_uint(d[4 * j + 3]));
    }
    fence_shared_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(dq_full(dq_stage.slot));
  }
}

__device__ __forceinline__ int load_acquire(const int* address) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_release(int* address, int x) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void bulk_add(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
// Waits until all bulk stores and additions of this thread are in memory.
__device__ __forceinline__ void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Orders this thread's ordinary memory accesses with respect to those of TMA.
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Called by one thread per dq buffer. When it is this block's turn for a tile, it adds the buffer to the tile's sums in memory and passes
// the turn to the next block. `step` counts the tiles of all work items.
__device__ __forceinline__ void accumulate_dq(uint32_t& phase, int& step, const OnePassBlock& block, int buffer) {
  const Scratch& scratch = block.a.scratch;
#pragma unroll 1
  for (QueryTiles i(block); i.more(); i.next(), ++step) {
    if (step % kReducerWarps != buffer) continue;
    // The number of blocks of later keys that the tile attends to. They add before this block.
    const int turn = (min((i.tile + 1) * kTile, block.item.queries) - 1 + block.item.shift()) / kKeys - block.item.part;
    const int64_t index = block.a.statistics.tile_index(i.head, block.item, i.tile);
    while (turn != 0 && load_acquire(scratch.turn + index) != turn) {}
    barrier_wait(dq_full(buffer), phase);
    fence_proxy();
    if (turn == 0) {
      bulk_store(scratch.dq + index * (Layout::kDqBytes / 16), dq_at(buffer), Layout::kDqBytes);
    } else {
      bulk_add(scratch.dq + index * (Layout::kDqBytes / 16), dq_at(buffer), Layout::kDqBytes);
    }
    bulk_store_wait_read();
    barrier_arrive(dq_empty(buffer));
    bulk_store_wait();
    fence_proxy();
    store_release(scratch.turn + index, turn + 1);
    phase ^= 1;
  }
}

// Called by one thread: loads the keys and values of a work item and all its tiles of queries.
__device__ __forceinline__ void load_item(Stage& s, const OnePassBlock& block) {
  const Pipeline<Layout::kStages> pipeline(shared_base() + Layout::kBarriers);
  const Maps& maps = block.a.maps;
  barrier_expect(owned_full(block.slot), Layout::kOwnBytes);
#pragma unroll 1
  for (int i = 0; i < kGroups; ++i) {
    const int64_t token = block.item.k_begin + block.item.part * kKeys + i * kTile;
    load_tile<1>(block.own_tile(i, 0), maps.k, block.item.head, token, owned_full(block.slot));
    load_tile<1>(block.own_tile(i, 1), maps.v, block.item.head, token, owned_full(block.slot));
  }
  const int q_begin = static_cast<int>(block.item.q_begin);
#pragma unroll 1
  for (QueryTiles i(block); i.more(); i.next(), next<Layout::kStages>(s)) {
    const uint32_t barrier = pipeline.full(s);
    barrier_wait(pipeline.empty(s), s.phase ^ 1);
    barrier_expect(barrier, Layout::kStageBytes + kStatisticsBytes);
    load_tile<1>(block.tile(s, 0), maps.q, i.head, q_begin + i.tile * kTile, barrier);
    load_tile<1>(block.tile(s, 1), maps.dy, i.head, q_begin + i.tile * kTile, barrier);
    bulk_load(block.statistics_at(s), block.a.statistics.tile_data(i.head, block.item, i.tile), kStatisticsBytes, barrier);
  }
}

// The producer warp: takes work items from the queue, one ahead of the consumers, and loads their tiles.
__device__ __forceinline__ void run_persistent(const Arguments& a) {
  RowHint hint;
  const bool elected = threadIdx.x % 32 == 0;
  Stage stage;
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(item_empty(slot), s.phase ^ 1);
    const bool more = pop_item<kKeys, true>(a.b.forward, a.work, hint, item_at(slot));
    if (elected && !more) item_at(slot).head = -1;
    __syncwarp();  // this warp's own lanes read the item too
    barrier_arrive(item_full(slot));
    if (!more) return;
    const OnePassBlock block(a, slot);
    if (elected) load_item(stage, block);
    __syncwarp();
  }
}
#endif

__global__ void __launch_bounds__(kThreads, 1) gradients(const __grid_constant__ Arguments a) {
#if BASED_HAS_WGMMA
  if (threadIdx.x == 0) init_barriers();
  __syncthreads();
  const int group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group < kGroups) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kOwnerRegisters));
    OwnerState state{Pipeline<Layout::kStages>(shared_base() + Layout::kBarriers), {}};
    for_each_item(a, [&](const OnePassBlock& block, uint32_t phase) { compute_dk_dv(state, block, phase); });
  } else if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kDqRegisters));
    Stage ds_stage, dq_stage;
    for_each_item(a, [&](const OnePassBlock& block, uint32_t phase) { compute_dq(ds_stage, dq_stage, block, phase); });
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kHelperRegisters));
    // The previous kernel writes the ticket, the turns and the statistics. No other warp of the block can proceed before this one does.
    wait_for_earlier_kernels(), let_next_kernel_start();
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32 % 4);
    if (warp == 0) return run_persistent(a);
    uint32_t phase = 0;
    int step = 0;
    for_each_item(a, [&](const OnePassBlock& block, uint32_t) {
      if (threadIdx.x % 32 == 0) accumulate_dq(phase, step, block, warp - 1);
    });
  }
#else
  __trap();
#endif
}

// Converts the sums of dq, which are stored in accumulator order, to bf16. Each block handles one tile of one head. Adjacent blocks handle
// the heads of the same tile, whose gradients are adjacent in memory.
__global__ void __launch_bounds__(kGroup) finish(const __grid_constant__ CausalAttentionBackward b,
                                                 const __grid_constant__ Statistics statistics, const float4* __restrict__ sums) {
  constexpr int kWidth = kTile + 8;  // padding, so that adjacent rows are in different banks
  __shared__ __align__(16) bf16 tile[kTile * kWidth];
  const CausalAttention& p = b.forward;
  const int number = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) - number * p.heads;
  WorkItem item;
  const bool found = find_part<kTile, false>(p, number, item);
  wait_for_earlier_kernels();
  if (!found) return;
  const float4* source = sums + statistics.tile_index(head, item, item.part) * (Layout::kDqBytes / 16) + threadIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = 16 * warp + lane / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 x = __ldcs(source + j * kGroup);
    bf16* transposed = tile + (8 * j + 2 * (lane % 4)) * kWidth + column;
    transposed[0] = __float2bfloat16_rn(x.x * p.scale), transposed[kWidth] = __float2bfloat16_rn(x.y * p.scale);
    transposed[8] = __float2bfloat16_rn(x.z * p.scale), transposed[kWidth + 8] = __float2bfloat16_rn(x.w * p.scale);
  }
  __syncthreads();
  const int rows = min(item.queries - item.part * kTile, kTile), unit = threadIdx.x % 8;
  bf16* gradient = static_cast<bf16*>(b.grad_q) + (item.q_begin + item.part * kTile) * b.grad_q_stride + head * p.head_dim;
#pragma unroll
  for (int r = threadIdx.x / 8; r < kTile; r += kGroup / 8) {
    if (r < rows && unit * 8 < p.head_dim) {
      *reinterpret_cast<uint4*>(gradient + r * b.grad_q_stride + unit * 8) = *reinterpret_cast<const uint4*>(tile + r * kWidth + unit * 8);
    }
  }
}

}  // namespace

Status backward_one_pass(const CausalAttentionBackward& b, const Maps& maps, const Statistics& statistics, const Scratch& scratch,
                         Queue queue) {
  constexpr int64_t kCacheBytes = 32 << 20, kTokenBytes = 64 * 4 + 4 * 64 * 2;  // per token and head: dq in fp32; q, k, v, dy in bf16
  const CausalAttention& p = b.forward;
  const int64_t parts = p.k_tokens / kKeys + p.rows, items = parts * p.kv_heads;
  const int64_t heads = kCacheBytes / ((p.k_tokens / p.rows + 1) * kTokenBytes * (p.heads / p.kv_heads));
  if (items > 1 << 30 || statistics.padded / kTile * p.heads > 0x7fffffff) return {"causal_attention: too many tokens for one launch"};
  if (const cudaError_t e = allow_shared_memory(gradients, Layout::kBytes); e != cudaSuccess) return status_of(e);
  const int heads_in_cache = static_cast<int>(std::clamp<int64_t>(heads, 1, p.kv_heads));
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(items, multiprocessors())));
  const Arguments a{b, maps, statistics, scratch, {scratch.ticket, static_cast<int>(parts), p.kv_heads, heads_in_cache}};
  if (const Status s = launch_overlapped(gradients, {blocks, kThreads, Layout::kBytes}, queue, a); !s.ok()) return s;
  const dim3 tiles(static_cast<unsigned>(statistics.padded / kTile * p.heads));
  return launch_overlapped(finish, {tiles, kGroup}, queue, b, statistics, scratch.dq);
}

}  // namespace based::kernels::cuda::detail::causal
