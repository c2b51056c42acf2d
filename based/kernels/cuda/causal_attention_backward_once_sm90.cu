// Softmax attention backward on Hopper with the scores made once: bf16, head_dim ≤ 64, for walks long enough to fill a pipeline. A block
// owns 128 keys of a head at a time and walks over the queries that see them, those of the diagonal first:
//   two warpgroups, 64 keys each   Sᵀ, (dy vᵀ)ᵀ ──► P, dS ──► dv += Pᵀ dy, dk += dSᵀ q
//   one warpgroup                  dSᵀ, through shared memory ──► dqᵀ = kᵀ dSᵀ of the tile
//   four warps                     deal out keys and bring tiles; add dq to the sums in memory
// Blocks add their parts of a tile's dq in turn, later keys first, so the order of a sum is always the same. Keys are dealt out in that
// order too: whoever waits for a turn waits for a block that has begun, and hardly waits, since later keys have fewer queries before the
// tile.
#include <algorithm>

#include "based/kernels/cuda/causal_backward_sm90.cuh"
#include "based/kernels/cuda/causal_deal.cuh"

namespace based::kernels::cuda::detail::causal {
namespace {

constexpr int kGroups = 2, kKeys = kGroups * kTile;  // warpgroups that own keys
constexpr int kThreads = (kGroups + 2) * kGroup;
constexpr int kParts = 2;    // places for dS of each such warpgroup
constexpr int kSenders = 3;  // warps that add dq to the sums, a place for dq each; one more deals and brings

// Shared memory: owned keys and values of this place and the next, the ring of q and dy, dS, dq, statistics of the ring's queries,
// barriers.
struct Memory {
  static constexpr int kStages = 4;
  static constexpr uint32_t kOwnBytes = kGroups * 2 * kSlabBytes, kStageBytes = 2 * kSlabBytes, kDqBytes = 2 * kSlabBytes;
  static constexpr uint32_t kRing = 2 * kOwnBytes, kDs = kRing + kStages * kStageBytes;
  static constexpr uint32_t kDq = kDs + kGroups * kParts * kSlabBytes, kStatistics = kDq + kSenders * kDqBytes;
  static constexpr uint32_t kBarriers = kStatistics + kStages * kStatisticsBytes, kDsBarriers = kBarriers + 16 * kStages;
  static constexpr uint32_t kDqBarriers = kDsBarriers + 16 * kGroups * kParts, kPlaceBarriers = kDqBarriers + 16 * kSenders;
  static constexpr uint32_t kBytes = kPlaceBarriers + 2 * 24 + 1024;
};

struct Arguments {
  CausalAttentionBackward b;
  Maps maps;
  Statistics statistics;
  Scratch scratch;
  Deck deck;  // parts of kKeys keys; the L2 cache holds the sums of the heads that are taken together
};

#if BASED_HAS_WGMMA
constexpr int kUsers = 4 * (kGroups + 1) + kSenders;  // warps that read what was dealt out
// Registers of a thread that owns keys, that makes dq, of the four warps: 512 together.
constexpr int kOwnersRegisters = 208, kQueriesRegisters = 64, kHelpersRegisters = 32;

// dS of a warpgroup, dq, and what was dealt out: where they are, and the barriers that say that they are there and that nobody needs them.
__device__ __forceinline__ uint32_t ds_at(int group, int slot) {
  return shared_base() + Memory::kDs + (group * kParts + slot) * kSlabBytes;
}
__device__ __forceinline__ uint32_t ds_here(int group, int slot) {
  return shared_base() + Memory::kDsBarriers + 16 * (group * kParts + slot);
}
__device__ __forceinline__ uint32_t ds_read(int group, int slot) { return ds_here(group, slot) + 8; }
__device__ __forceinline__ uint32_t dq_at(int slot) { return shared_base() + Memory::kDq + slot * Memory::kDqBytes; }
__device__ __forceinline__ uint32_t dq_here(int slot) { return shared_base() + Memory::kDqBarriers + 16 * slot; }
__device__ __forceinline__ uint32_t dq_read(int slot) { return dq_here(slot) + 8; }
__device__ __forceinline__ Place& place_at(int slot) {
  __shared__ Place places[2];
  return places[slot];
}
__device__ __forceinline__ uint32_t place_here(int slot) { return shared_base() + Memory::kPlaceBarriers + 24 * slot; }
__device__ __forceinline__ uint32_t place_left(int slot) { return place_here(slot) + 8; }
__device__ __forceinline__ uint32_t own_here(int slot) { return place_here(slot) + 16; }  // its keys and values

__device__ __forceinline__ void init_barriers() {
  for (int i = 0; i < kGroups * kParts; ++i) barrier_init(ds_here(0, i), 4), barrier_init(ds_read(0, i), 4);
  for (int i = 0; i < kSenders; ++i) barrier_init(dq_here(i), 4), barrier_init(dq_read(i));
  for (int i = 0; i < 2; ++i) barrier_init(place_here(i), 32), barrier_init(place_left(i), 32 * kUsers), barrier_init(own_here(i));
  Walk<Memory::kStages>::init(shared_base() + Memory::kBarriers, kGroups * 4);
  fence_shared_proxy();
}

// What a block does for the keys of one place.
struct OncePassBlock {
  const Arguments& a;
  const CausalAttention& p;
  Place at;
  int slot, group, first, window;  // the warpgroup's first key
  Tiles own[kGroups], all;         // tiles of queries that a warpgroup's keys need, that some warpgroup's need

  __device__ __forceinline__ OncePassBlock(const Arguments& of, int place_slot)
      : a(of), p(of.b.forward), at(place_at(place_slot)), slot(place_slot) {
    group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    at.head = warp_uniform(at.head), at.part = warp_uniform(at.part), at.queries = warp_uniform(at.queries),
    at.keys = warp_uniform(at.keys);
    first = at.part * kKeys + group * kTile, window = window_of(p);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) own[i] = warp_uniform(tiles_of_queries(at, at.part * kKeys + i * kTile, window));
    all = warp_uniform(either(own[0], own[1]));
  }
  __device__ __forceinline__ int count() const { return max(all.last - all.first + 1, 0); }
  __device__ __forceinline__ uint32_t own_tile(int of, int which) const {
    return shared_base() + slot * Memory::kOwnBytes + (of * 2 + which) * kSlabBytes;
  }
  // q and dy of a stage.
  __device__ __forceinline__ static uint32_t tile(const Stage& s, int which) {
    return shared_base() + Memory::kRing + (2 * s.slot + which) * kSlabBytes;
  }
  __device__ __forceinline__ static uint32_t statistics_at(const Stage& s) {
    return shared_base() + Memory::kStatistics + s.slot * kStatisticsBytes;
  }
};

// What the warps but the dealing one do, for one place after another.
template <typename Work>
__device__ __forceinline__ void for_each_place(const Arguments& a, const Work& work) {
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(place_here(slot), s.phase);
    if (place_at(slot).head < 0) return;
    work(OncePassBlock(a, slot), s.phase);
    barrier_arrive(place_left(slot));
  }
}

// The warpgroups that own keys: where one is in the ring of queries and in its places for dS, and its sums, with its values as an operand.
struct Ring {
  Walk<Memory::kStages> walk;
  Stage part;
};
struct Sums {
  float of_k[1][32] = {}, of_v[1][32] = {};
  uint32_t v[4][4];
};

__device__ __forceinline__ void multiply(const OncePassBlock& block, const Sums& sum, Pairs& pairs, const Stage& stage) {
  multiply_tokens<1>(pairs.s, block.own_tile(block.group, 0), block.tile(stage, 0));
  wgmma_commit();
  multiply_tokens<1>(pairs.ds, sum.v, block.tile(stage, 1));
  wgmma_commit();
}
__device__ __forceinline__ void add(const OncePassBlock& block, Sums& sum, const Pairs& pairs, const Stage& stage) {
  add_weighted<1>(sum.of_v, pairs.p, block.tile(stage, 1));
  add_weighted<1>(sum.of_k, pairs.g, block.tile(stage, 0));
  wgmma_commit();
}
__device__ __forceinline__ void weigh(const OncePassBlock& block, int tile, Pairs& pairs, const Stage& stage) {
  const int distance = block.first - block.at.shift() - tile * kTile;
  mask(pairs.s, distance, distance + block.window - 1);
  pairs.weigh(block.p.scale * kLog2e, ByColumn{block.statistics_at(stage)});
}
// Gives dS of a tile to the warpgroup that makes dq.
__device__ __forceinline__ void hand_over(const OncePassBlock& block, const uint32_t (&ds)[16], Stage& part) {
  barrier_wait(ds_read(block.group, part.slot), part.phase ^ 1);
  const int lane = threadIdx.x % 32, matrix = lane / 8, row = 16 * (threadIdx.x / 32 % 4) + 8 * (matrix & 1) + lane % 8;
  const uint32_t to = ds_at(block.group, part.slot) + row * 128;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    stmatrix(to + (((j + (matrix >> 1)) ^ (row & 7)) * 16), ds[2 * j], ds[2 * j + 1], ds[2 * j + 2], ds[2 * j + 3]);
  }
  fence_shared_proxy();
  __syncwarp();
  if (lane == 0) barrier_arrive(ds_here(block.group, part.slot));
  next<kParts>(part);
}
// Tiles that only the other warpgroup needs.
__device__ __forceinline__ void skip(Ring& ring, const OncePassBlock& block, int tiles) {
  const uint32_t none[16] = {};
#pragma unroll 1
  for (; tiles > 0; --tiles, ring.walk.advance()) {
    ring.walk.wait(), ring.walk.release(ring.walk.stage);
    hand_over(block, none, ring.part);
  }
}

// For q and dy of the tile numbered `tile`, and zeros in them behind their row's end.
__device__ __forceinline__ void wait(const Ring& ring, const OncePassBlock& block, int tile) {
  ring.walk.wait();
  if (const int rows = block.at.queries - tile * kTile; rows < kTile) {
    clear_rows<1>(block.tile(ring.walk.stage, 0), rows), clear_rows<1>(block.tile(ring.walk.stage, 1), rows);
    rows_are_cleared(block.group);
  }
}

// Walks over the warpgroup's tiles. While the weights of one are made, its dy·v and the gradients from the tile before are multiplied.
__device__ __forceinline__ void add_tiles(Ring& ring, const OncePassBlock& block, const Tiles& own, Sums& sum) {
  Pairs pairs;
  skip(ring, block, own.first - block.all.first);
  wait(ring, block, own.first);
  Stage before = ring.walk.stage;
  wgmma_begin();
  multiply(block, sum, pairs, before);
  wgmma_wait<1>();
  accumulator_fence(pairs.s);
  weigh(block, own.first, pairs, before);
  wgmma_wait<0>();
  accumulator_fence(pairs.ds);
  pairs.differentiate(ByColumn{block.statistics_at(before)});
  ring.walk.advance();
  if (own.first < own.last) wait(ring, block, own.first + 1);
  for (int tile = own.first + 1; tile <= own.last; ++tile) {
    const Stage now = ring.walk.stage;
    wgmma_begin();
    multiply(block, sum, pairs, now);
    add(block, sum, pairs, warp_uniform(before));
    hand_over(block, pairs.g, ring.part);  // here, where the scores have to be waited for
    wgmma_wait<2>();
    accumulator_fence(pairs.s);
    weigh(block, tile, pairs, now);
    accumulator_fence(pairs.s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    ring.walk.advance();
    if (tile < own.last) wait(ring, block, tile + 1);
    wgmma_wait<0>();
    accumulator_fence(pairs.s), accumulator_fence(pairs.ds), accumulator_fence_all(sum.of_k), accumulator_fence_all(sum.of_v);
    ring.walk.release(before);
    pairs.differentiate(ByColumn{block.statistics_at(now)});
    before = now;
  }
  wgmma_begin();
  add(block, sum, pairs, before);
  hand_over(block, pairs.g, ring.part);
  wgmma_wait<0>();
  accumulator_fence_all(sum.of_k), accumulator_fence_all(sum.of_v);
  ring.walk.release(before);
  skip(ring, block, block.all.last - own.last);
}

__device__ __forceinline__ void write(const OncePassBlock& block, void* gradient, int64_t stride, float scale, const float (&d)[1][32]) {
  const int64_t token = block.at.k_begin + block.first;
  store_tile<1>(static_cast<bf16*>(gradient) + token * stride + block.at.head * block.p.head_dim, stride, block.p.head_dim,
                min(block.at.keys - block.first, kTile), block.own_tile(block.group, 1), d, make_float2(scale, scale));
}

__device__ __forceinline__ void own_keys(Ring& ring, const OncePassBlock& block, uint32_t phase) {
  const CausalAttentionBackward& b = block.a.b;
  const Tiles own = block.group == 0 ? block.own[0] : block.own[1];
  Sums sum;
  barrier_wait(own_here(block.slot), phase);
  if (const int keys = max(block.at.keys - block.first, 0); keys < kTile) {  // dq is a sum over all keys of the tile
    clear_rows<1>(block.own_tile(block.group, 0), keys), clear_rows<1>(block.own_tile(block.group, 1), keys);
    rows_are_cleared(block.group);
  }
  load_tokens<1>(sum.v, block.own_tile(block.group, 1));
  for (int turn = 0; turn < block.at.share; ++turn) {
    if (own.first <= own.last) {
      add_tiles(ring, block, own, sum);
    } else {
      skip(ring, block, block.count());
    }
  }
  group_barrier(block.group);  // nobody reads the owned values any more: gradients go there
  write(block, b.grad_k, b.grad_k_stride, block.p.scale, sum.of_k);
  __syncwarp();
  write(block, b.grad_v, b.grad_v_stride, 1.0F, sum.of_v);
  fence_shared_proxy();  // before TMA brings other values there
}

// The steps of a block's walk: tiles of queries of each head that reads its keys.
struct Steps {
  int first, last, heads, head, tile;
  __device__ __forceinline__ explicit Steps(const OncePassBlock& block) : first(block.all.first), last(block.all.last) {
    head = block.at.head * block.at.share, heads = first <= last ? block.at.share : 0, tile = first;
  }
  __device__ __forceinline__ bool more() const { return heads > 0; }
  __device__ __forceinline__ void next() {
    if (++tile > last) tile = first, ++head, --heads;
  }
};

// The warpgroup that makes dq: where it is in the places for dS and for dq.
__device__ __forceinline__ void make_queries(Stage& part, Stage& out, const OncePassBlock& block, uint32_t phase) {
  barrier_wait(own_here(block.slot), phase);
#pragma unroll 1
  for (Steps i(block); i.more(); i.next(), next<kParts>(part), next<kSenders>(out)) {
    float d[32];
    const int slot = warp_uniform(part.slot);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) barrier_wait(ds_here(group, slot), part.phase);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < 4 * kGroups; ++j) {
      const uint32_t at = j % 4 * 2048;
      wgmma_64x64x16_shared<1>(d, part_of(block.own_tile(j / 4, 0), at), part_of(ds_at(j / 4, slot), at), j > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    accumulator_fence(d);
    if (threadIdx.x % 32 == 0) barrier_arrive(ds_read(0, slot)), barrier_arrive(ds_read(1, slot));
    barrier_wait(dq_read(out.slot), out.phase ^ 1);
    const uint32_t to = dq_at(out.slot) + threadIdx.x % kGroup * 16;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      store_shared_16(to + j * kGroup * 16, __float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1]), __float_as_uint(d[4 * j + 2]),
                      __float_as_uint(d[4 * j + 3]));
    }
    fence_shared_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(dq_here(out.slot));
  }
}

__device__ __forceinline__ int load_acquire(const int* at) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
__device__ __forceinline__ void store_release(int* at, int x) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ void bulk_add(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
// Until all bulk stores and additions of this thread are in memory.
__device__ __forceinline__ void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Orders this thread's ordinary accesses and those of TMA.
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

// A thread for each place for dq: when it is this block's turn, adds what is there to the sums in memory, and passes the turn on. `step`
// counts over all places.
__device__ __forceinline__ void send(uint32_t& phase, int& step, const OncePassBlock& block, int which) {
  const Scratch& scratch = block.a.scratch;
#pragma unroll 1
  for (Steps i(block); i.more(); i.next(), ++step) {
    if (step % kSenders != which) continue;
    // Blocks of later keys that the tile sees come before this one.
    const int turn = (min((i.tile + 1) * kTile, block.at.queries) - 1 + block.at.shift()) / kKeys - block.at.part;
    const int64_t number = block.a.statistics.tile(i.head, block.at, i.tile);
    while (turn != 0 && load_acquire(scratch.turn + number) != turn) {}
    barrier_wait(dq_here(which), phase);
    fence_proxy();
    if (turn == 0) {
      bulk_store(scratch.dq + number * (Memory::kDqBytes / 16), dq_at(which), Memory::kDqBytes);
    } else {
      bulk_add(scratch.dq + number * (Memory::kDqBytes / 16), dq_at(which), Memory::kDqBytes);
    }
    bulk_store_wait_read();
    barrier_arrive(dq_read(which));
    bulk_store_wait();
    fence_proxy();
    store_release(scratch.turn + number, turn + 1);
    phase ^= 1;
  }
}

// One thread: keys and values of a place, and the tiles of its walk.
__device__ __forceinline__ void bring(Stage& s, const OncePassBlock& block) {
  const Walk<Memory::kStages> walk(shared_base() + Memory::kBarriers);
  const Maps& maps = block.a.maps;
  barrier_expect(own_here(block.slot), Memory::kOwnBytes);
#pragma unroll 1
  for (int i = 0; i < kGroups; ++i) {
    const int64_t token = block.at.k_begin + block.at.part * kKeys + i * kTile;
    load_tile<1>(block.own_tile(i, 0), maps.k, block.at.head, token, own_here(block.slot));
    load_tile<1>(block.own_tile(i, 1), maps.v, block.at.head, token, own_here(block.slot));
  }
  const int q_begin = static_cast<int>(block.at.q_begin);
#pragma unroll 1
  for (Steps i(block); i.more(); i.next(), next<Memory::kStages>(s)) {
    const uint32_t here = walk.here(s);
    barrier_wait(walk.consumed(s), s.phase ^ 1);
    barrier_expect(here, Memory::kStageBytes + kStatisticsBytes);
    load_tile<1>(block.tile(s, 0), maps.q, i.head, q_begin + i.tile * kTile, here);
    load_tile<1>(block.tile(s, 1), maps.dy, i.head, q_begin + i.tile * kTile, here);
    bulk_load(block.statistics_at(s), block.a.statistics.of(i.head, block.at, i.tile), kStatisticsBytes, here);
  }
}

// A warp deals places out to its block, one ahead.
__device__ __forceinline__ void deal(const Arguments& a) {
  LastPlace last;
  const bool one = threadIdx.x % 32 == 0;
  Stage stage;
  for (Stage s;; next<2>(s)) {
    const int slot = warp_uniform(s.slot);
    barrier_wait(place_left(slot), s.phase ^ 1);
    const bool more = take_place<kKeys, true>(a.b.forward, a.deck, last, place_at(slot));
    if (one && !more) place_at(slot).head = -1;
    __syncwarp();  // its own lanes read the place, too
    barrier_arrive(place_here(slot));
    if (!more) return;
    const OncePassBlock block(a, slot);
    if (one) bring(stage, block);
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
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kOwnersRegisters));
    Ring ring{Walk<Memory::kStages>(shared_base() + Memory::kBarriers), {}};
    for_each_place(a, [&](const OncePassBlock& block, uint32_t phase) { own_keys(ring, block, phase); });
  } else if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kQueriesRegisters));
    Stage part, out;
    for_each_place(a, [&](const OncePassBlock& block, uint32_t phase) { make_queries(part, out, block, phase); });
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kHelpersRegisters));
    // Tickets, turns and statistics come from the kernel before this one; nothing happens here without them.
    wait_for_earlier_kernels(), let_next_kernel_start();
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32 % 4);
    if (warp == 0) return deal(a);
    uint32_t phase = 0;
    int step = 0;
    for_each_place(a, [&](const OncePassBlock& block, uint32_t) {
      if (threadIdx.x % 32 == 0) send(phase, step, block, warp - 1);
    });
  }
#else
  __trap();
#endif
}

// Writes dq from its sums, which lie as their warpgroup had them: a block a tile of a head. Neighbours are the heads of a tile, whose
// gradients lie side by side in memory.
__global__ void __launch_bounds__(kGroup) finish(const __grid_constant__ CausalAttentionBackward b,
                                                 const __grid_constant__ Statistics statistics, const float4* __restrict__ sums) {
  constexpr int kWidth = kTile + 8;  // so that neighbouring rows are in different banks
  __shared__ __align__(16) bf16 tile[kTile * kWidth];
  const CausalAttention& p = b.forward;
  const int number = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) - number * p.heads;
  Place place;
  const bool found = find_part<kTile, false>(p, number, place);
  wait_for_earlier_kernels();
  if (!found) return;
  const float4* from = sums + statistics.tile(head, place, place.part) * (Memory::kDqBytes / 16) + threadIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = 16 * warp + lane / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 x = __ldcs(from + j * kGroup);
    bf16* to = tile + (8 * j + 2 * (lane % 4)) * kWidth + column;
    to[0] = __float2bfloat16_rn(x.x * p.scale), to[kWidth] = __float2bfloat16_rn(x.y * p.scale);
    to[8] = __float2bfloat16_rn(x.z * p.scale), to[kWidth + 8] = __float2bfloat16_rn(x.w * p.scale);
  }
  __syncthreads();
  const int rows = min(place.queries - place.part * kTile, kTile), unit = threadIdx.x % 8;
  bf16* gradient = static_cast<bf16*>(b.grad_q) + (place.q_begin + place.part * kTile) * b.grad_q_stride + head * p.head_dim;
#pragma unroll
  for (int r = threadIdx.x / 8; r < kTile; r += kGroup / 8) {
    if (r < rows && unit * 8 < p.head_dim) {
      *reinterpret_cast<uint4*>(gradient + r * b.grad_q_stride + unit * 8) = *reinterpret_cast<const uint4*>(tile + r * kWidth + unit * 8);
    }
  }
}

}  // namespace

Status gradients_at_once(const CausalAttentionBackward& b, const Maps& maps, const Statistics& statistics, const Scratch& scratch,
                         Stream stream) {
  constexpr int64_t kCacheBytes = 32 << 20, kTokenBytes = 64 * 4 + 4 * 64 * 2;  // of a head: dq, q, k, v, dy
  const CausalAttention& p = b.forward;
  const int64_t numbers = p.k_tokens / kKeys + p.rows, places = numbers * p.kv_heads;
  const int64_t heads = kCacheBytes / ((p.k_tokens / p.rows + 1) * kTokenBytes * (p.heads / p.kv_heads));
  if (places > 1 << 30 || statistics.padded / kTile * p.heads > 0x7fffffff) return {"causal_attention: too many tokens for one launch"};
  if (const cudaError_t e = allow_shared_memory(gradients, Memory::kBytes); e != cudaSuccess) return status_of(e);
  const int together = static_cast<int>(std::clamp<int64_t>(heads, 1, p.kv_heads));
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(places, multiprocessors())));
  const Arguments a{b, maps, statistics, scratch, {scratch.ticket, static_cast<int>(numbers), p.kv_heads, together}};
  if (const Status s = launch_overlapped(gradients, {blocks, kThreads, Memory::kBytes}, stream, a); !s.ok()) return s;
  const dim3 tiles(static_cast<unsigned>(statistics.padded / kTile * p.heads));
  return launch_overlapped(finish, {tiles, kGroup}, stream, b, statistics, scratch.dq);
}

}  // namespace based::kernels::cuda::detail::causal
