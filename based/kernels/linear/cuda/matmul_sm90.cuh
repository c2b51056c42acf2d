// bf16 matrix products d = a·b on Hopper with an epilogue applied to the sums in registers. The two blocks of a cluster own adjacent tiles
// of 128 rows and the same 256 columns of d. Each block loads one half of b for both. Blocks are persistent: a producer thread loads tiles
// through a ring that continues into the next tile of d. Two warpgroups multiply 64 rows each and pass their sums to an Epilogue.
#pragma once
#include "based/kernels/common/cuda/tensor_map.h"
#include "based/kernels/common/cuda/wgmma.cuh"

namespace based::kernels::cuda::detail::matmul {

constexpr int kRows = 128, kColumns = 256, kDepth = 64;  // size of a tile of d; depth in k of a stage
constexpr int kGroup = 128;                              // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;                     // the first warpgroup loads
constexpr uint32_t kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2, kStageBytes = kABytes + kBBytes;
constexpr int kBox = 64;                         // rows and columns of a box, the unit of TMA copies of results and epilogue operands
constexpr uint32_t kBoxBytes = kBox * kBox * 2;  // swizzled by 128 bytes

// The tiles of d and the order in which clusters process them: `pairs_in_cache` pairs of row tiles before the next column tile, so that the
// operands that concurrent clusters share stay in the L2 cache.
struct Tiles {
  int pairs, columns, steps;  // number of pairs of row tiles, of column tiles, of stages in k
  int pairs_in_cache;
  int b_step, b_half;  // offsets in rows of b (= columns of d): from one tile to the next; from the first half of a tile to the second

  __device__ __forceinline__ int count() const { return pairs * columns; }
};

struct Operands {
  CUtensorMap a, b;
};

#if BASED_HAS_WGMMA
__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Position of a tile of this block: its first row and the index of its column tile.
struct TilePosition {
  int row, column;
  __device__ __forceinline__ TilePosition(const Tiles& tiles, int tile) {
    const int group_tiles = tiles.pairs_in_cache * tiles.columns, group = tile / group_tiles, first = group * tiles.pairs_in_cache;
    const int within = tile - group * group_tiles, n = min(tiles.pairs_in_cache, tiles.pairs - first);
    column = within / n;
    row = (2 * (first + within - column * n) + static_cast<int>(rank_in_cluster())) * kRows;
  }
};
// A cluster processes tiles first_tile(), first_tile() + tile_step(), …
__device__ __forceinline__ int first_tile() { return static_cast<int>(blockIdx.x / 2); }
__device__ __forceinline__ int tile_step() { return static_cast<int>(gridDim.x / 2); }

// Prefetches a box into the L2 cache.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(column), "r"(row) : "memory");
}
// Loads a box to the same shared address in both blocks of the cluster, and signals the barrier of each.
__device__ __forceinline__ void load_box_for_both(uint32_t shared, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::
          "r"(shared),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap& map, int column, int row, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column), "r"(row), "r"(shared)
               : "memory");
}
// Load and store for data that is not reused soon; `policy` is first_out_of_cache().
__device__ __forceinline__ void load_box_once(uint32_t shared, const CUtensorMap& map, int column, int row, uint32_t barrier,
                                              uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          shared),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void store_box_once(const CUtensorMap& map, int column, int row, uint32_t shared, uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(&map), "r"(column),
               "r"(row), "r"(shared), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Arrives at a barrier of block `rank` without cluster-scope release semantics, which would cost a device-wide fence. None is needed: the
// arrival only says that the tensor cores have read a stage.
__device__ __forceinline__ void arrive_in_block(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Address that this lane passes to ldmatrix or stmatrix for four 8 x 8 matrices of its warp's 16 rows of a box. The matrices begin at rows
// 0, 8, 0, 8 and columns 8j, 8j, 8j + 8, 8j + 8.
__device__ __forceinline__ uint32_t matrix_address(uint32_t box, int j) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16, unit = j + lane / 16;
  return box + row * 128 + ((unit ^ (row % 8)) << 4);
}
__device__ __forceinline__ void write_box(uint32_t box, const uint32_t (&x)[16]) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) stmatrix(matrix_address(box, j), x[2 * j], x[2 * j + 1], x[2 * j + 2], x[2 * j + 3]);
}
// Packs columns 64n .. 64n + 63 of the sums as bf16 pairs.
template <int kCount>
__device__ __forceinline__ void pack_box(const float (&d)[kCount], int n, uint32_t (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = pack_bf16(d[32 * n + 2 * i], d[32 * n + 2 * i + 1]);
}

// Stores boxes of results by TMA. A warpgroup alternates between two buffers, so that it can fill one while the other is being stored.
struct TileStore {
  uint32_t boxes;
  int group, buffer = 0;
  __device__ __forceinline__ void store(const CUtensorMap& map, int column, int row, const uint32_t (&x)[16]) {
    const uint32_t box = boxes + buffer * kBoxBytes;
    const bool elected = threadIdx.x % kGroup == 0;
    if (elected) wait_for_stores<1>();
    group_barrier(group);
    write_box(box, x);
    fence_shared_proxy();
    group_barrier(group);
    if (elected) store_box(map, column, row, box), commit_stores();
    buffer ^= 1;
  }
};

// The ring of operand stages. In a, k is contiguous in memory; in b, n is contiguous if kMajorN, else k.
template <bool kMajorN, int kStages>
struct Ring {
  uint32_t base, barriers;
  __device__ __forceinline__ uint32_t a(int slot) const { return base + slot * kStageBytes; }
  __device__ __forceinline__ uint32_t b(int slot) const { return a(slot) + kABytes; }
  __device__ __forceinline__ uint32_t full(int slot) const { return barriers + 16 * slot; }
  __device__ __forceinline__ uint32_t empty(int slot) const { return full(slot) + 8; }

  __device__ __forceinline__ void init() const {
    for (int slot = 0; slot < kStages; ++slot) barrier_init(full(slot)), barrier_init(empty(slot), 4);  // two warpgroups of two blocks
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // Called by one thread. Loads a stage of a, and half `rank` of b for both blocks of the cluster.
  __device__ __forceinline__ void load(const Operands& operands, int slot, int k, int row, int column, uint32_t rank) const {
    constexpr uint32_t kSlab = kBox * kDepth * 2;  // 64 rows or columns of a stage
    barrier_expect(full(slot), kStageBytes);
    load_box(a(slot), operands.a, k, row, full(slot));
    const uint32_t half = b(slot) + rank * 2 * kSlab;
    if constexpr (kMajorN) {
      load_box_for_both(half, operands.b, column, k, full(slot)), load_box_for_both(half + kSlab, operands.b, column + kBox, k, full(slot));
    } else {
      load_box_for_both(half, operands.b, k, column, full(slot));
    }
  }
  // Issues the products of warpgroup `group` with a stage.
  __device__ __forceinline__ void multiply(float (&d)[128], int slot, int group, bool accumulate) const {
    constexpr uint32_t kSlab = kBox * kDepth * 2, kBStep = kMajorN ? 2048 : 32;  // 16 of k
    const uint32_t rows = a(slot) + group * kSlab, columns = b(slot);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      wgmma_64x256x16_shared<kMajorN>(d, operand(rows + 32 * k, 0, 1024, Swizzle::bytes128),
                                      operand(columns + kBStep * k, kSlab, 1024, Swizzle::bytes128), accumulate || k > 0);
    }
  }
  // Called by a warpgroup when all its products with the stage are complete; one thread signals each block.
  __device__ __forceinline__ void release(int slot) const {
    if (threadIdx.x % kGroup == 0) arrive_in_block(empty(slot), 0);
    if (threadIdx.x % kGroup == 32) arrive_in_block(empty(slot), 1);
  }
};

// The producer thread: loads the operands of all tiles of the block.
template <class RingType, int kStages>
__device__ __forceinline__ void load_all(const RingType& ring, const Tiles& tiles, const Operands& operands) {
  const int rank = static_cast<int>(rank_in_cluster());
  RingPlace stage;
  for (int tile = first_tile(); tile < tiles.count(); tile += tile_step()) {
    const TilePosition position(tiles, tile);
    for (int step = 0; step < tiles.steps; ++step, stage.advance(kStages)) {
      barrier_wait(ring.empty(stage.slot), stage.phase ^ 1);
      ring.load(operands, stage.slot, step * kDepth, position.row, position.column * tiles.b_step + rank * tiles.b_half, rank);
    }
  }
}

// The consumer loop of a warpgroup. The epilogue accepts a tile's sums as soon as they are complete. It stores the results in parts, each
// between two steps of the next tile, so that this work overlaps the tensor cores.
template <class RingType, int kStages, class Epilogue>
struct Multiplier {
  const RingType& ring;
  const Tiles& tiles;
  Epilogue& epilogue;
  int group;
  RingPlace stage;
  int previous_slot = 0;

  __device__ __forceinline__ void issue(float (&d)[128], int step) {
    barrier_wait(ring.full(stage.slot), stage.phase);
    wgmma_begin();
    ring.multiply(d, stage.slot, group, step > 0);
    wgmma_commit();
  }
  // Waits until the products of the previous step are complete, and releases its stage.
  __device__ __forceinline__ void retire(int step) {
    wgmma_wait<1>();
    if (step > 0) ring.release(previous_slot);
    previous_slot = stage.slot;
    stage.advance(kStages);
  }
  __device__ __forceinline__ void store_all_parts() {
#pragma unroll
    for (int i = 0; i < Epilogue::kParts; ++i) epilogue.store_part(i);
  }
  __device__ __forceinline__ void run() {
    const int steps_per_part = tiles.steps / Epilogue::kParts;  // spreads the memory accesses of the parts evenly
    const bool overlaps = steps_per_part > 0;
    float d[128];
    for (int tile = first_tile();; tile += tile_step()) {
      const bool pending = tile != first_tile(), more = tile < tiles.count();
      if (pending && !(overlaps && more)) store_all_parts();
      if (!more) break;
      int step = 0;
      if (pending && overlaps) {
#pragma unroll
        for (int i = 0; i < Epilogue::kParts; ++i) {
          issue(d, step), epilogue.store_part(i), retire(step++);
          for (int e = 1; e < steps_per_part; ++e) issue(d, step), retire(step++);
        }
      }
      for (; step < tiles.steps; ++step) issue(d, step), retire(step);
      wgmma_wait<0>();
      ring.release(previous_slot);
      accumulator_fence(d);
      const TilePosition position(tiles, tile);
      epilogue.accept_accumulators(d, position.row + group * kBox, position.column);
    }
  }
};
#endif

// An Epilogue has
//   kStages                              number of stages of the ring
//   kBoxes, kBarriers                    boxes of shared memory and barriers per consumer warpgroup
//   init(barriers)                       initializes the barriers of a warpgroup
//   prefetch_operands(params, tiles, boxes, barriers, group)   run by one extra thread per warpgroup: loads further operands of the
//   epilogue accept_accumulators(d, row, column)  called by the warpgroup with a tile's sums; it should keep at most half as many registers
//   store_part(i)                        computes and stores part i of kParts of the results, called in order
template <class Epilogue>
constexpr int kSharedBytes = 1024 + Epilogue::kStages*(static_cast<int>(kStageBytes) + 16) +
                             2 * (Epilogue::kBoxes * static_cast<int>(kBoxBytes) + Epilogue::kBarriers * 8);

template <bool kMajorN, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1) multiply(const __grid_constant__ Tiles tiles, const __grid_constant__ Operands operands,
                                                        const __grid_constant__ typename Epilogue::Params params) {
#if BASED_HAS_WGMMA
  extern __shared__ char memory[];
  constexpr int kStages = Epilogue::kStages;
  const uint32_t base = (shared_address(memory) + 1023) & ~1023U, first_box = base + kStages * kStageBytes;
  const uint32_t barriers = first_box + 2 * Epilogue::kBoxes * kBoxBytes;
  const Ring<kMajorN, kStages> ring{base, barriers};
  const auto boxes = [&](int group) { return first_box + group * Epilogue::kBoxes * kBoxBytes; };
  const auto group_barriers = [&](int group) { return barriers + 16 * kStages + group * Epilogue::kBarriers * 8; };
  if (threadIdx.x == 0) {
    ring.init();
    Epilogue::init(group_barriers(0)), Epilogue::init(group_barriers(1));
    fence_shared_proxy();
  }
  __syncthreads();
  cluster_arrive(), cluster_wait();
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < kGroup / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) load_all<decltype(ring), kStages>(ring, tiles, operands);
    if (threadIdx.x % 32 == 0 && (warp == 1 || warp == 2))
      Epilogue::prefetch_operands(params, tiles, boxes(warp - 1), group_barriers(warp - 1), warp - 1);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = warp / (kGroup / 32) - 1;
    Epilogue epilogue(params, boxes(group), group_barriers(group), group);
    Multiplier<decltype(ring), kStages, Epilogue>{ring, tiles, epilogue, group}.run();
    if (threadIdx.x % kGroup == 0) wait_for_stores<0>();
  }
  cluster_arrive(), cluster_wait();  // the other block may still write to this block's shared memory or arrive at its barriers
#else
  __trap();
#endif
}

}  // namespace based::kernels::cuda::detail::matmul
