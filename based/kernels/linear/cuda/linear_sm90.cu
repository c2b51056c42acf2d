// Linear layer of 2 to 512 rows in bf16 (decoding of many sequences), bound by the L2 bandwidth of a multiprocessor and by chains of
// latencies. A block owns 64 outputs, up to 128 rows, and one of `splits` parts of `in`. The blocks of the same outputs form a cluster.
// They send their sums to the block that owns the rows, which adds them in a fixed order. One producer warp loads and four warps multiply
// (with 128 rows, eight: four per half). Constant weights are prefetched before the previous kernels have ended. The ring of weights is
// separate from the ring of rows, so that weights can be prefetched far ahead.
#include <algorithm>
#include <cstddef>
#include <span>

#include "based/kernels/common/cuda/tensor_map.h"
#include "based/kernels/linear/cuda/linear_epilogue_sm90.cuh"

namespace based::kernels::cuda {
namespace detail {
namespace {

constexpr int kSlab = 64;  // elements of `in`, 128 bytes, as wide as the swizzle
constexpr int kMaxSplits = 8;
constexpr int kMaxStages = 16;

// The end of a block's shared memory, after the ring of weights, the ring of rows, and the cluster's sums (without a cluster they reuse the
// rings). The producer fills a stage of a ring and waits for `empty`; the consumers wait for `full`.
template <int kRows>
struct LinearStorage {
  uint64_t weights_full[kMaxStages], rows_full[kMaxStages], rows_empty[kMaxStages];  // mbarriers of the stages
  uint64_t sums_full[4];                                                             // mbarriers, one per warpgroup: the cluster's sums
  float scales[4 * kRows];  // for norms: the scale of each row, or the sums of squares [4 warps, rows]
};

// Sizes of the shared memory. Up to 64 rows, two blocks fit on a multiprocessor: one of this layer and one of the next layer, which waits
// for it. With more rows, a deep ring of small stages is faster (measured).
template <int kRows>
struct LinearLayout {
  static constexpr int kGroups = kRows == 128 ? 2 : 1, kGroupRows = kRows / kGroups;  // warpgroups, and rows per warpgroup
  static constexpr int kSlabs = kRows < 64 ? 2 : 1;                                   // 64-element slabs per stage
  static constexpr int kDepth = kSlabs * kSlab;
  static constexpr int kWeightBytes = kSlabs * kLinearOutputs * 128, kRowBytes = kSlabs * kRows * 128;  // bytes per stage
  static constexpr int kRowStages = kRows == 128 ? 7 : kRows == 64 ? 5 : 4;
  static constexpr int kEndBytes = static_cast<int>(sizeof(LinearStorage<kRows>));
  static constexpr int kLimit = (kRows == 128 ? 205 : 113) * 1024 - kEndBytes - 1024;  // 1024: alignment of the stages
};

struct LinearPlan {
  int splits = 1;  // blocks per cluster
  int weight_stages = 1, row_stages = 1;
  int steps = 0;                                         // stages that cover all of `in`
  int rows_offset = 0, sums_offset = 0, end_offset = 0;  // byte offsets in shared memory; end: of LinearStorage
};

// Further layers with the same x in the same launch. Their tiles follow those of the first layer.
struct FusedLayers {
  int count = 0;
  struct Entry {
    CUtensorMap weights;
    Linear layer;
  } entries[kMostLayersAtOnce - 1];
};

#if BASED_HAS_WGMMA
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
__device__ __forceinline__ uint32_t address_in_block(uint32_t shared, int rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
  return remote;
}
// Stores to the shared memory of a block of the cluster, and signals that block's barrier.
__device__ __forceinline__ void send_float4(uint32_t remote, uint32_t barrier, float a, float b, float c, float d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote), "f"(a), "f"(b),
               "f"(c), "f"(d), "r"(barrier)
               : "memory");
}
// Barrier of all consumer warps. If kScaled, the warp that computes the scales arrives at it too, so the scales are complete. It uses named
// barrier 8; lower numbers belong to group_barrier().
template <int kGroups, bool kScaled>
__device__ __forceinline__ void consumer_barrier() {
  asm volatile("bar.sync 8, %0;" ::"n"(kGroups * kGroup + 32 * kScaled) : "memory");
}
template <int kGroups>
__device__ __forceinline__ void scales_are_ready() {
  asm volatile("bar.arrive 8, %0;" ::"n"(kGroups * kGroup + 32) : "memory");
}

// Loads the weights of 32 outputs and their gates, alternating groups of 8 outputs and 8 gates, so that the same thread gets the sums of an
// output and its gate. `group` is the index of the first group of 8 outputs.
__device__ __forceinline__ void load_pairs(uint32_t shared, const CUtensorMap& map, int column, int group, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(0), "r"(group), "r"(barrier)
      : "memory");
}

// d += 64 rows of weights · kRows rows of x, over 16 elements of k.
template <int kRows>
__device__ __forceinline__ void multiply(float (&d)[kRows / 2], uint64_t weight, uint64_t x) {
  if constexpr (kRows == 8) wgmma_64x8x16_shared(d, weight, x, true);
  if constexpr (kRows == 16) wgmma_64x16x16_shared(d, weight, x, true);
  if constexpr (kRows == 32) wgmma_64x32x16_shared(d, weight, x, true);
  if constexpr (kRows == 64) wgmma_64x64x16_shared(d, weight, x, true);
  if constexpr (kRows == 128) wgmma_64x128x16_shared(d, weight, x, true);
}

template <int kRows, LinearForm kForm>
struct LinearBlock {  // the block's part of the problem; with SwiGLU, its 64 outputs are 32 outputs and their gates
  using Layout = LinearLayout<kRows>;
  static constexpr int kSlabs = Layout::kSlabs, kGroups = Layout::kGroups, kUnits = Layout::kGroupRows / 8;
  using Storage = LinearStorage<kRows>;
  // Byte offsets of the members of Storage.
  static constexpr int kRowsFull = offsetof(Storage, rows_full), kRowsEmpty = offsetof(Storage, rows_empty),
                       kSumsFull = offsetof(Storage, sums_full), kScales = offsetof(Storage, scales);
  static_assert(offsetof(Storage, weights_full) == 0);
  const LinearPlan& plan;
  uint32_t base;  // shared memory, aligned to 1024 bytes
  int split, first_out, first_row, first_step, steps;

  __device__ __forceinline__ LinearBlock(const LinearPlan& linear_plan, uint32_t shared, int tile)
      : plan(linear_plan), base((shared + 1023) & ~1023U) {
    split = static_cast<int>(blockIdx.x) % plan.splits, first_out = tile * outputs_of(kForm);
    first_row = kRows == 128 ? static_cast<int>(blockIdx.y) * kRows : 0;
    first_step = plan.steps * split / plan.splits, steps = plan.steps * (split + 1) / plan.splits - first_step;
  }
  __device__ __forceinline__ uint32_t weights_address(const RingPlace& r) const { return base + r.slot * Layout::kWeightBytes; }
  __device__ __forceinline__ uint32_t rows_address(const RingPlace& r) const {
    return base + plan.rows_offset + r.slot * Layout::kRowBytes;
  }
  __device__ __forceinline__ uint32_t weights_full(const RingPlace& r) const { return base + plan.end_offset + r.slot * 8; }
  __device__ __forceinline__ uint32_t rows_full(const RingPlace& r) const { return weights_full(r) + kRowsFull; }
  __device__ __forceinline__ uint32_t rows_empty(const RingPlace& r) const { return weights_full(r) + kRowsEmpty; }
  __device__ __forceinline__ uint32_t sums_full(int group) const { return base + plan.end_offset + kSumsFull + group * 8; }
  __device__ __forceinline__ uint32_t sums_address(int group) const {
    return base + plan.sums_offset + group * max(kUnits, plan.splits) * kUnitBytes;
  }
  // Buffer in which a group transposes its y. It reuses the stages after they have been read.
  __device__ __forceinline__ uint32_t tile(int group) const { return base + group * kUnits * 8 * kLinearOutputs * 2; }
  __device__ __forceinline__ uint32_t scales_address() const { return base + plan.end_offset + kScales; }

  // Called by all lanes of a warp; each lane initializes the barriers of one stage.
  __device__ __forceinline__ void init_barriers() const {
    RingPlace r;
    r.slot = threadIdx.x % 32;
    for (int group = 0; group < (r.slot == 31 ? kGroups : 0); ++group) {  // one lane initializes all: racecheck recognises that
      const uint32_t barrier = sums_full(group);
      barrier_init(barrier);
      if (plan.splits > 1 && split < kUnits) barrier_expect(barrier, (plan.splits - 1) * max(1, kUnits / plan.splits) * kUnitBytes);
    }
    if (r.slot < plan.weight_stages) barrier_init(weights_full(r));
    if (r.slot < plan.row_stages) barrier_init(rows_full(r)), barrier_init(rows_empty(r), kGroups * kGroup / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_shared_proxy();
    __syncwarp();
  }
  __device__ __forceinline__ void load_weights(const CUtensorMap& weights, int step, const RingPlace& r) const {
    barrier_expect(weights_full(r), Layout::kWeightBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      const uint32_t stage = weights_address(r) + slab * kLinearOutputs * 128;
      const int column = ((first_step + step) * kSlabs + slab) * kSlab;
      if constexpr (kForm == LinearForm::swiglu) {
        load_pairs(stage, weights, column, first_out / 8, weights_full(r));
      } else {
        load_box(stage, weights, column, first_out, weights_full(r));
      }
    }
  }
  __device__ __forceinline__ void load_rows(const CUtensorMap& rows, int step, const RingPlace& r) const {
    barrier_expect(rows_full(r), Layout::kRowBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
      load_box(rows_address(r) + slab * kRows * 128, rows, ((first_step + step) * kSlabs + slab) * kSlab, first_row, rows_full(r));
  }
  // Called by one thread; the three functions below in this order.
  __device__ __forceinline__ void load_first_weights(const CUtensorMap& weights) const {
    for (RingPlace r; r.slot < min(steps, plan.weight_stages); ++r.slot) load_weights(weights, r.slot, r);
  }
  __device__ __forceinline__ void load_first_rows(const CUtensorMap& rows) const {
    for (RingPlace r; r.slot < min(steps, plan.row_stages); ++r.slot) load_rows(rows, r.slot, r);
  }
  __device__ __forceinline__ void load_remaining(const CUtensorMap& weights, const CUtensorMap& rows) const {
    RingPlace weight, row;
    for (int step = 0; step + plan.row_stages < steps; ++step) {
      barrier_wait(rows_empty(row), row.phase);
      load_rows(rows, step + plan.row_stages, row);
      if (step + plan.weight_stages < steps) load_weights(weights, step + plan.weight_stages, weight);
      row.advance(plan.row_stages), weight.advance(plan.weight_stages);
    }
  }
  __device__ __forceinline__ void multiply_all(float (&d)[4 * kUnits], int group) const {
    RingPlace weight, row;
    uint32_t previous = 0;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(weights_full(weight), weight.phase);
      barrier_wait(rows_full(row), row.phase);
      wgmma_begin();
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        const uint64_t w = operand(weights_address(weight) + slab * kLinearOutputs * 128, 0, 1024, Swizzle::bytes128);
        const uint64_t x = operand(rows_address(row) + (slab * kRows + group * Layout::kGroupRows) * 128, 0, 1024, Swizzle::bytes128);
#pragma unroll
        for (int k = 0; k < kSlab / 16; ++k) multiply<Layout::kGroupRows>(d, w + 2 * k, x + 2 * k);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the products of the previous step are complete
      if (step > 0 && threadIdx.x % 32 == 0) barrier_arrive(previous);
      previous = rows_empty(row);
      row.advance(plan.row_stages), weight.advance(plan.weight_stages);
    }
    wgmma_wait<0>();
    accumulator_fence(d);
  }
};

// Called by one warp: computes the scale 1 / rms of each row of the block from the tiles' sums of squares, added in the order of the tiles,
// and stores it to scales [kRows] in shared memory.
template <int kRows>
__device__ __forceinline__ void compute_scales(const NormBefore& norm, int64_t width, uint32_t scales) {
  constexpr int kLanes = kRows / 4, kGroups = 32 / kLanes,
                kInFlight = 32 / kGroups;  // lanes, with four rows each; tiles in flight per lane
  const int lane = threadIdx.x % 32, group = lane / kLanes, row = lane % kLanes * 4;
  const float* squares = norm.squares + (kRows == 128 ? blockIdx.y * norm.parts * kRows : 0) + row;
  float4 sum = {};
  for (int64_t first = group; first < norm.parts; first += 32) {
    float4 part[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t tile = first + i * kGroups;
      part[i] = tile < norm.parts ? __ldcg(reinterpret_cast<const float4*>(squares + tile * kRows)) : float4{};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
  }
#pragma unroll
  for (int distance = 16; distance >= kLanes; distance /= 2) {
    sum.x += __shfl_xor_sync(~0U, sum.x, distance), sum.y += __shfl_xor_sync(~0U, sum.y, distance);
    sum.z += __shfl_xor_sync(~0U, sum.z, distance), sum.w += __shfl_xor_sync(~0U, sum.w, distance);
  }
  const float mean = 1 / static_cast<float>(width);
  if (group == 0)
    store_shared_float4(scales + row * 4, rsqrtf(fmaf(sum.x, mean, norm.eps)), rsqrtf(fmaf(sum.y, mean, norm.eps)),
                        rsqrtf(fmaf(sum.z, mean, norm.eps)), rsqrtf(fmaf(sum.w, mean, norm.eps)));
}

// Reduces the partial sums of all blocks of a cluster in a fixed order. Each block owns some of the rows: it reduces them and runs their
// epilogue.
template <typename Y, LinearForm kForm, bool kScaled, int kRows, int kSplits>
__device__ __forceinline__ void reduce_cluster(Epilogue<Y, kForm, kScaled>& epilogue,
                                               const float (&d)[LinearBlock<kRows, kForm>::kUnits * 4],
                                               const LinearBlock<kRows, kForm>& block, int group) {
  constexpr int kUnits = LinearBlock<kRows, kForm>::kUnits, kOwned = kUnits > kSplits ? kUnits / kSplits : 1;
  constexpr int kBatch = kOwned < kHeldUnits ? kOwned : kHeldUnits;  // units that are reduced together
  const int split = block.split, group_row = group * kUnits * 8;
  const uint32_t thread_sums = block.sums_address(group) + threadIdx.x % kGroup * 16, barrier = block.sums_full(group);
  static_assert(kForm == LinearForm::adds || kOwned <= kBatch, "the units of a batch fill the tile alone");
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int owner = u / kOwned;
    const uint32_t address = thread_sums + (kSplits == 1 ? u : split * kOwned + u % kOwned) * kUnitBytes;
    if (kSplits == 1 || owner == split) {
      store_shared_float4(address, d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3]);
    } else {
      send_float4(address_in_block(address, owner), address_in_block(barrier, owner), d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3]);
    }
  }
  if (split >= kUnits) return;
  if constexpr (kSplits > 1) barrier_wait(barrier, 0);
#pragma unroll 1
  for (int first = 0; first < kOwned; first += kBatch) {
    const uint32_t batch_sums = thread_sums + first * kUnitBytes;
    float4 sum[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      sum[u] = load_shared_float4(batch_sums + u * kUnitBytes);
#pragma unroll
      for (int s = 1; s < kSplits; ++s) {
        const float4 part = load_shared_float4(batch_sums + (s * kOwned + u) * kUnitBytes);
        sum[u].x += part.x, sum[u].y += part.y, sum[u].z += part.z, sum[u].w += part.w;
      }
    }
    const int first_row = group_row + (split * kOwned + first) * 8;
    if constexpr (kForm != LinearForm::adds) {
      epilogue.write(sum, block.tile(group), first_row);
    } else {
      epilogue.template add<kRows>(sum, batch_sums, first_row);
      if (first + kBatch < kOwned) epilogue.prefetch_residual(first_row + 8 * kBatch, kBatch);
    }
  }
  if constexpr (kForm == LinearForm::adds) epilogue.template write_squares<kRows>(group_row + split * kOwned * 8, kOwned * 8);
}

// The epilogue without a cluster. y is stored directly from registers. Sums that are added to the residual stream pass through shared
// memory, as with a cluster.
template <typename Y, LinearForm kForm, bool kScaled, int kRows>
__device__ __forceinline__ void finish_without_cluster(Epilogue<Y, kForm, kScaled>& epilogue,
                                                       const float (&d)[LinearBlock<kRows, kForm>::kUnits * 4],
                                                       const LinearBlock<kRows, kForm>& block, int group) {
  if constexpr (kForm == LinearForm::adds) {
    reduce_cluster<Y, kForm, kScaled, kRows, 1>(epilogue, d, block, group);
  } else {
    constexpr int kUnits = LinearBlock<kRows, kForm>::kUnits;
    float4 sum[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) sum[u] = make_float4(d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3]);
    epilogue.write(sum, block.tile(group), group * kUnits * 8);
  }
}
#endif

template <int kRows, bool kScaled>
constexpr int kThreads = LinearLayout<kRows>::kGroups* kGroup + 32 + 32 * kScaled;

template <typename Y, LinearForm kForm, bool kScaled, int kRows>
__global__ void __launch_bounds__(kThreads<kRows, kScaled>, kRows == 128 ? 1 : 2)
    many_rows(const __grid_constant__ Linear first_layer, const __grid_constant__ FusedLayers fused_layers,
              const __grid_constant__ JoinedNorm norm, const __grid_constant__ LinearPlan plan,
              const __grid_constant__ CUtensorMap first_weights, const __grid_constant__ CUtensorMap rows) {
#if BASED_HAS_WGMMA
  extern __shared__ char memory[];
  constexpr int kGroups = LinearLayout<kRows>::kGroups, kUnits = LinearLayout<kRows>::kGroupRows / 8;
  int tile = static_cast<int>(blockIdx.x) / plan.splits;
  const Linear* layer = &first_layer;
  const CUtensorMap* map = &first_weights;
  if constexpr (kForm == LinearForm::plain && kScaled) {
    for (int i = 0; i < fused_layers.count; ++i) {
      const int tiles = static_cast<int>(layer->out + kLinearOutputs - 1) / kLinearOutputs;
      if (tile < tiles) break;
      tile -= tiles, layer = &fused_layers.entries[i].layer, map = &fused_layers.entries[i].weights;
    }
  }
  const Linear& p = *layer;
  const CUtensorMap& weights = *map;
  const LinearBlock<kRows, kForm> block(plan, shared_address(memory), tile);
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const bool is_producer = warp == kGroups * kGroup / 32, first_lane = threadIdx.x % 32 == 0;
  if (is_producer) {
    if (first_lane) prefetch_map(weights), prefetch_map(rows);
    block.init_barriers();
    if (first_lane && p.weight_is_constant) block.load_first_weights(weights);
    __syncwarp();
  }
  let_next_kernel_start();
  if (plan.splits > 1) cluster_arrive_relaxed(), cluster_wait();  // the barriers of all blocks of the cluster are initialised
  __syncthreads();                                                // the barriers are initialised
  if (is_producer) {
    if (first_lane) {
      wait_for_earlier_kernels();
      block.load_first_rows(rows);
      if (!p.weight_is_constant) block.load_first_weights(weights);
      block.load_remaining(weights, rows);
    }
    return;
  }
  if constexpr (kScaled) {
    if (warp >= kGroups * kGroup / 32) {
      wait_for_earlier_kernels();
      compute_scales<kRows>(norm.before, p.in, block.scales_address());
      __syncwarp();
      return scales_are_ready<kGroups>();
    }
  }
  const int group = warp / (kGroup / 32);
  if (!p.weight_is_constant) wait_for_earlier_kernels();
  Epilogue<Y, kForm, kScaled> epilogue(p, norm, block.scales_address(), block.first_out, block.first_row);
  if constexpr (kForm == LinearForm::adds) {
    const int owned = max(1, kUnits / plan.splits);
    wait_for_earlier_kernels();
    epilogue.prefetch_residual((group * kUnits + block.split * owned) * 8, min(owned, kHeldUnits));
  }
  float d[4 * kUnits] = {};
  block.multiply_all(d, group);
  wait_for_earlier_kernels();            // before this thread writes anything that earlier kernels read
  consumer_barrier<kGroups, kScaled>();  // all warps have finished reading the stages; their memory is reused for y or the sums
  switch (plan.splits) {
    case 1: return finish_without_cluster(epilogue, d, block, group);
    case 2: return reduce_cluster<Y, kForm, kScaled, kRows, 2>(epilogue, d, block, group);
    case 4: return reduce_cluster<Y, kForm, kScaled, kRows, 4>(epilogue, d, block, group);
    default: return reduce_cluster<Y, kForm, kScaled, kRows, 8>(epilogue, d, block, group);
  }
#else
  __trap();
#endif
}

int64_t tile_count(const Linear& p) { return ceil_div(p.out, kLinearOutputs) * ceil_div(p.rows, kLinearRows); }

// Uses as many splits as there are free multiprocessors, as long as a part of `in` is long enough to pay for the reduction. Measured: with
// few rows the reduction is cheap, and even a second block per multiprocessor pays off if parts are long. With many rows, parts shorter
// than 768 cost more than they save, probably because blocks of the next layer could start on the multiprocessors left free.
template <int kRows>
int choose_splits(const Linear& p, int steps) {
  const int64_t tiles = tile_count(p), processors = multiprocessors();
  int splits = 1;
  while (splits < kMaxSplits && 2 * splits <= steps) {
    const int64_t blocks = tiles * 2 * splits, part = p.in / (2 * splits);
    const bool worth = kRows == 128 ? blocks <= processors && (part >= 768 || 2 * blocks <= processors)
                                    : blocks <= processors || (blocks <= 2 * processors && part >= 768);
    if (!worth) break;
    splits *= 2;
  }
  return splits;
}

template <int kRows>
LinearPlan make_plan(const Linear& p) {
  using Layout = LinearLayout<kRows>;
  LinearPlan plan;
  plan.steps = static_cast<int>(ceil_div(p.in, Layout::kDepth));
  plan.splits = choose_splits<kRows>(p, plan.steps);
  const int max_steps = static_cast<int>(ceil_div(plan.steps, plan.splits));
  const int units = Layout::kGroups * std::max(Layout::kGroupRows / 8, plan.splits);
  const int sums = plan.splits == 1 ? 0 : units * kUnitBytes;
  plan.row_stages = std::min(max_steps, Layout::kRowStages);
  const int left = Layout::kLimit - sums - plan.row_stages * Layout::kRowBytes;
  plan.weight_stages = std::min({max_steps, kMaxStages, left / Layout::kWeightBytes});
  plan.row_stages = std::min(plan.row_stages, plan.weight_stages);
  plan.rows_offset = plan.weight_stages * Layout::kWeightBytes;
  const int rings = plan.rows_offset + plan.row_stages * Layout::kRowBytes;
  plan.sums_offset = plan.splits == 1 ? 0 : rings;
  plan.end_offset = plan.splits == 1 ? std::max(rings, units * kUnitBytes) : rings + sums;
  return plan;
}

Status describe_weights(CUtensorMap& map, const Linear& p, bool swiglu) {
  if (!swiglu) return describe_matrix(map, p.weight, p.out, p.in, p.weight_stride, kLinearOutputs);
  const int64_t width = p.out / 2, row = p.weight_stride * 2;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(p.in), 8, 2, static_cast<cuuint64_t>(width / 8)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(width * row), static_cast<cuuint64_t>(8 * row)};
  return describe_tiles(map, p.weight, sizes, strides, {kSlab, 8, 2, kLinearOutputs / 16});
}

using Layers = std::span<const Linear>;  // the layers of one launch

template <typename Y, LinearForm kForm, bool kScaled, int kRows>
Status run(Layers layers, const JoinedNorm& norm, Queue queue) {
  const Linear& p = layers[0];
  Linear all = p;
  FusedLayers fused_layers;
  for (const Linear& layer : layers.subspan(1)) {
    FusedLayers::Entry& entry = fused_layers.entries[fused_layers.count++];
    entry.layer = layer;
    if (const Status s = describe_weights(entry.weights, layer, false); !s.ok()) return s;
    all.out = round_up(all.out, kLinearOutputs) + layer.out;
  }
  const LinearPlan plan = make_plan<kRows>(all);
  CUtensorMap weights, rows;
  if (const Status s = describe_weights(weights, p, kForm == LinearForm::swiglu); !s.ok()) return s;
  if (const Status s = describe_matrix(rows, p.x, p.rows, p.in, p.x_stride, kRows); !s.ok()) return s;
  auto* kernel = many_rows<Y, kForm, kScaled, kRows>;
  const int shared = plan.end_offset + LinearLayout<kRows>::kEndBytes + 1024;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(ceil_div(all.out, kLinearOutputs) * plan.splits);
  const Launch launch{dim3(blocks, static_cast<unsigned>(ceil_div(p.rows, kLinearRows))), kThreads<kRows, kScaled>, shared,
                      static_cast<unsigned>(plan.splits)};
  return launch_overlapped(kernel, launch, queue, p, fused_layers, norm, plan, weights, rows);
}

template <typename Y, LinearForm kForm, bool kScaled = false>
Status choose_rows(Layers layers, const JoinedNorm& norm, Queue queue) {
  const int64_t rows = layers[0].rows;
  if (rows <= 8) return run<Y, kForm, kScaled, 8>(layers, norm, queue);
  if (rows <= 16) return run<Y, kForm, kScaled, 16>(layers, norm, queue);
  if (rows <= 32) return run<Y, kForm, kScaled, 32>(layers, norm, queue);
  return rows <= 64 ? run<Y, kForm, kScaled, 64>(layers, norm, queue) : run<Y, kForm, kScaled, 128>(layers, norm, queue);
}

}  // namespace

Status linear_sm90(const Linear& p, Queue queue) {
  return p.y_dtype == DType::bf16 ? choose_rows<bf16, LinearForm::plain>({&p, 1}, {}, queue)
                                  : choose_rows<float, LinearForm::plain>({&p, 1}, {}, queue);
}

Status linear_swiglu_sm90(const Linear& p, Queue queue) { return choose_rows<bf16, LinearForm::swiglu>({&p, 1}, {}, queue); }

}  // namespace detail

Status linear_before_norm(const Linear& p, const NormAfter& after, Queue queue) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::adds>({&p, 1}, {{}, after}, queue);
}

Status linears_after_norm(std::span<const Linear> layers, const NormBefore& previous, Queue queue) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::plain, true>(layers, {previous, {}}, queue);
}

Status linear_swiglu_after_norm(const Linear& p, const NormBefore& previous, Queue queue) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::swiglu, true>({&p, 1}, {previous, {}}, queue);
}

namespace {
const DefineLaunchers<LinearStepLaunchers> kLaunchers(Device::cuda, {.before_norm = linear_before_norm,
                                                                     .swiglu_after_norm = linear_swiglu_after_norm,
                                                                     .layers_after_norm = linears_after_norm,
                                                                     .layers_of_one_row = linears_of_one_row});
}

}  // namespace based::kernels::cuda
