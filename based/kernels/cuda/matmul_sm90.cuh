// Matrix products of bf16 on Hopper, whose results are finished while they are in registers. Two blocks, a cluster, own neighbouring tiles
// of 128 rows and the same 256 columns of d = a·b; each brings one half of b for both. Blocks are persistent: a warp requests tiles through
// a ring that runs on into the next tile of d, two warpgroups multiply 64 rows each and hand their sums to an Epilogue.
#pragma once
#include "based/kernels/cuda/tensor_map.h"
#include "based/kernels/cuda/wgmma.cuh"

namespace based::kernels::cuda::detail::matmul {

constexpr int kRows = 128, kColumns = 256, kDepth = 64;  // of a tile of d; of a stage
constexpr int kGroup = 128;                              // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;                     // the first warpgroup requests
constexpr uint32_t kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2, kStageBytes = kABytes + kBBytes;
constexpr int kBox = 64;                         // rows and columns of a result on its way to memory
constexpr uint32_t kBoxBytes = kBox * kBox * 2;  // swizzled by 128 bytes

// Which tiles there are, and in which order a cluster takes them: `together` pairs of row tiles before the next columns, so that the L2
// cache holds what the clusters of a moment share.
struct Tiles {
  int pairs, columns, steps;  // pairs of row tiles, column tiles, stages in k
  int together;
  int b_step, b_half;  // of b, in columns of d: from one tile to the next, from its first half to its second

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

// A tile of the block's: the first of its rows and the number of its columns.
struct Place {
  int row, column;
  __device__ __forceinline__ Place(const Tiles& tiles, int tile) {
    const int of_group = tiles.together * tiles.columns, group = tile / of_group, first = group * tiles.together;
    const int within = tile - group * of_group, n = min(tiles.together, tiles.pairs - first);
    column = within / n;
    row = (2 * (first + within - column * n) + static_cast<int>(rank_in_cluster())) * kRows;
  }
};
// A cluster's tiles: first_tile(), + tile_step(), …
__device__ __forceinline__ int first_tile() { return static_cast<int>(blockIdx.x / 2); }
__device__ __forceinline__ int tile_step() { return static_cast<int>(gridDim.x / 2); }

// From memory to the L2 cache.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(column), "r"(row) : "memory");
}
// To the same place in both blocks of the cluster, and their barriers.
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
// Both for what nobody reads again soon; `policy` is first_out_of_cache().
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
__device__ __forceinline__ void stores_are_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Without an order across the cluster, which would cost a fence of the whole device: what it says has been read by the tensor cores.
__device__ __forceinline__ void arrive_in_block(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Where a lane's four 8 x 8 matrices of the 16 rows of its warp begin: rows 0, 8, 0, 8, columns 8j, 8j, 8j + 8, 8j + 8 of a box.
__device__ __forceinline__ uint32_t matrix_place(uint32_t box, int j) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16, unit = j + lane / 16;
  return box + row * 128 + ((unit ^ (row % 8)) << 4);
}
__device__ __forceinline__ void write_box(uint32_t box, const uint32_t (&x)[16]) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) stmatrix(matrix_place(box, j), x[2 * j], x[2 * j + 1], x[2 * j + 2], x[2 * j + 3]);
}
// Columns 64n and on of the sums, in pairs of a row.
template <int kCount>
__device__ __forceinline__ void pack_box(const float (&d)[kCount], int n, uint32_t (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = pack_bf16(d[32 * n + 2 * i], d[32 * n + 2 * i + 1]);
}

// A warpgroup's way to memory: two boxes in turn.
struct Outbox {
  uint32_t boxes;
  int group, turn = 0;
  __device__ __forceinline__ void send(const CUtensorMap& map, int column, int row, const uint32_t (&x)[16]) {
    const uint32_t box = boxes + turn * kBoxBytes;
    const bool leads = threadIdx.x % kGroup == 0;
    if (leads) stores_are_read<1>();
    group_barrier(group);
    write_box(box, x);
    fence_shared_proxy();
    group_barrier(group);
    if (leads) store_box(map, column, row, box), commit_stores();
    turn ^= 1;
  }
};

// a: k is contiguous in memory; b: n if kMajorN, else k.
template <bool kMajorN, int kStages>
struct Ring {
  uint32_t base, barriers;
  __device__ __forceinline__ uint32_t a(int slot) const { return base + slot * kStageBytes; }
  __device__ __forceinline__ uint32_t b(int slot) const { return a(slot) + kABytes; }
  __device__ __forceinline__ uint32_t here(int slot) const { return barriers + 16 * slot; }
  __device__ __forceinline__ uint32_t consumed(int slot) const { return here(slot) + 8; }

  __device__ __forceinline__ void init() const {
    for (int slot = 0; slot < kStages; ++slot) barrier_init(here(slot)), barrier_init(consumed(slot), 4);  // two warpgroups of two blocks
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // One thread. `rank`'s half of b goes to both blocks.
  __device__ __forceinline__ void request(const Operands& from, int slot, int k, int row, int column, uint32_t rank) const {
    constexpr uint32_t kSlab = kBox * kDepth * 2;  // 64 rows or columns of a stage
    barrier_expect(here(slot), kStageBytes);
    load_box(a(slot), from.a, k, row, here(slot));
    const uint32_t half = b(slot) + rank * 2 * kSlab;
    if constexpr (kMajorN) {
      load_box_for_both(half, from.b, column, k, here(slot)), load_box_for_both(half + kSlab, from.b, column + kBox, k, here(slot));
    } else {
      load_box_for_both(half, from.b, k, column, here(slot));
    }
  }
  // A stage's products of warpgroup `group`.
  __device__ __forceinline__ void multiply(float (&d)[128], int slot, int group, bool accumulate) const {
    constexpr uint32_t kSlab = kBox * kDepth * 2, kBStep = kMajorN ? 2048 : 32;  // 16 of k
    const uint32_t rows = a(slot) + group * kSlab, columns = b(slot);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      wgmma_64x256x16_shared<kMajorN>(d, operand(rows + 32 * k, 0, 1024, Swizzle::bytes128),
                                      operand(columns + kBStep * k, kSlab, 1024, Swizzle::bytes128), accumulate || k > 0);
    }
  }
  // One thread of a warpgroup, when all its products with the stage are done.
  __device__ __forceinline__ void release(int slot) const {
    if (threadIdx.x % kGroup == 0) arrive_in_block(consumed(slot), 0);
    if (threadIdx.x % kGroup == 32) arrive_in_block(consumed(slot), 1);
  }
};

template <class TheRing, int kStages>
__device__ __forceinline__ void request_all(const TheRing& ring, const Tiles& tiles, const Operands& from) {
  const int rank = static_cast<int>(rank_in_cluster());
  RingPlace stage;
  for (int tile = first_tile(); tile < tiles.count(); tile += tile_step()) {
    const Place place(tiles, tile);
    for (int step = 0; step < tiles.steps; ++step, stage.advance(kStages)) {
      barrier_wait(ring.consumed(stage.slot), stage.phase ^ 1);
      ring.request(from, stage.slot, step * kDepth, place.row, place.column * tiles.b_step + rank * tiles.b_half, rank);
    }
  }
}

// A tile's sums are taken at once, but what becomes of them is done in parts behind the next tile's products, which the tensor cores
// make meanwhile.
template <class TheRing, int kStages, class Epilogue>
struct Multiplier {
  const TheRing& ring;
  const Tiles& tiles;
  Epilogue& epilogue;
  int group;
  RingPlace stage;
  int before = 0;

  __device__ __forceinline__ void issue(float (&d)[128], int step) {
    barrier_wait(ring.here(stage.slot), stage.phase);
    wgmma_begin();
    ring.multiply(d, stage.slot, group, step > 0);
    wgmma_commit();
  }
  // The step before this one has been read.
  __device__ __forceinline__ void retire(int step) {
    wgmma_wait<1>();
    if (step > 0) ring.release(before);
    before = stage.slot;
    stage.advance(kStages);
  }
  __device__ __forceinline__ void all_parts() {
#pragma unroll
    for (int i = 0; i < Epilogue::kParts; ++i) epilogue.part(i);
  }
  __device__ __forceinline__ void run() {
    const int every = tiles.steps / Epilogue::kParts;  // steps from one part to the next, so that memory is asked evenly
    const bool hides = every > 0;
    float d[128];
    for (int tile = first_tile();; tile += tile_step()) {
      const bool some = tile != first_tile(), more = tile < tiles.count();
      if (some && !(hides && more)) all_parts();
      if (!more) break;
      int step = 0;
      if (some && hides) {
#pragma unroll
        for (int i = 0; i < Epilogue::kParts; ++i) {
          issue(d, step), epilogue.part(i), retire(step++);
          for (int e = 1; e < every; ++e) issue(d, step), retire(step++);
        }
      }
      for (; step < tiles.steps; ++step) issue(d, step), retire(step);
      wgmma_wait<0>();
      ring.release(before);
      accumulator_fence(d);
      const Place place(tiles, tile);
      epilogue.take(d, place.row + group * kBox, place.column);
    }
  }
};
#endif

// An Epilogue has
//   kStages                       stages of the ring; kBoxes boxes and kBarriers barriers of each warpgroup that multiplies
//   init(barriers)                of a warpgroup
//   feed(params, tiles, boxes, barriers, group)   what one more thread does beside that warpgroup
//   take(d, row, column)          a tile's sums, by the warpgroup: what it keeps of them should be half of their registers
//   part(i)                       one of kParts parts of what becomes of them, in order
template <class Epilogue>
constexpr int kSharedBytes = 1024 + Epilogue::kStages*(static_cast<int>(kStageBytes) + 16) +
                             2 * (Epilogue::kBoxes * static_cast<int>(kBoxBytes) + Epilogue::kBarriers * 8);

template <bool kMajorN, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1) multiply(const __grid_constant__ Tiles tiles, const __grid_constant__ Operands from,
                                                        const __grid_constant__ typename Epilogue::Params params) {
#if BASED_HAS_WGMMA
  extern __shared__ char memory[];
  constexpr int kStages = Epilogue::kStages;
  const uint32_t base = (shared_address(memory) + 1023) & ~1023U, first_box = base + kStages * kStageBytes;
  const uint32_t barriers = first_box + 2 * Epilogue::kBoxes * kBoxBytes;
  const Ring<kMajorN, kStages> ring{base, barriers};
  const auto boxes = [&](int group) { return first_box + group * Epilogue::kBoxes * kBoxBytes; };
  const auto own_barriers = [&](int group) { return barriers + 16 * kStages + group * Epilogue::kBarriers * 8; };
  if (threadIdx.x == 0) {
    ring.init();
    Epilogue::init(own_barriers(0)), Epilogue::init(own_barriers(1));
    fence_shared_proxy();
  }
  __syncthreads();
  cluster_arrive(), cluster_wait();
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < kGroup / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) request_all<decltype(ring), kStages>(ring, tiles, from);
    if (threadIdx.x % 32 == 0 && (warp == 1 || warp == 2)) Epilogue::feed(params, tiles, boxes(warp - 1), own_barriers(warp - 1), warp - 1);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = warp / (kGroup / 32) - 1;
    Epilogue epilogue(params, boxes(group), own_barriers(group), group);
    Multiplier<decltype(ring), kStages, Epilogue>{ring, tiles, epilogue, group}.run();
    if (threadIdx.x % kGroup == 0) stores_are_read<0>();
  }
  cluster_arrive(), cluster_wait();  // the other block may still write here, or arrive
#else
  __trap();
#endif
}

}  // namespace based::kernels::cuda::detail::matmul
