// 2 to 512 rows in bf16 (decoding of many texts), bound by what a multiprocessor takes in from the L2 cache and by chains of latencies. A
// block owns 64 outputs, for up to 128 rows, and one of `splits` parts of `in`; the blocks of the same outputs are a cluster and send their
// sums to the block that adds them up, in a fixed order. One warp requests, four multiply, of 128 rows four each half. Constant weights are
// on their way before the kernels before this one have ended; their ring is separate from the rows', so that it can run far ahead.
#include <algorithm>
#include <span>

#include "based/kernels/cuda/linear_end_sm90.cuh"
#include "based/kernels/cuda/tensor_map.h"

namespace based::kernels::cuda {
namespace detail {
namespace {

constexpr int kSlab = 64;  // elements of `in`, 128 bytes, as wide as the swizzle
constexpr int kMostSplits = 8;
constexpr int kMostStages = 16;
constexpr int kBarrierBytes = (3 * kMostStages + 4) * 8;

// Shared memory: the ring of weights, the ring of rows, the cluster's sums (without a cluster: where the rings were), barriers, and four
// floats a row for norms: scales, or four warps' sums of squares. Up to 64 rows two blocks fit on a multiprocessor, of this layer and of
// one that waits for it; with more rows, all the rows under way at once are worth more, and small stages. Measured.
template <int kRows>
struct LinearLayout {
  static constexpr int kGroups = kRows == 128 ? 2 : 1, kGroupRows = kRows / kGroups;  // warpgroups, and the rows of each
  static constexpr int kSlabs = kRows < 64 ? 2 : 1;                                   // of a stage
  static constexpr int kDepth = kSlabs * kSlab;
  static constexpr int kWeightBytes = kSlabs * kLinearOutputs * 128, kRowBytes = kSlabs * kRows * 128;  // of a stage
  static constexpr int kRowStages = kRows == 128 ? 7 : kRows == 64 ? 5 : 4;
  static constexpr int kEndBytes = kBarrierBytes + kRows * 16;
  static constexpr int kLimit = (kRows == 128 ? 205 : 113) * 1024 - kEndBytes - 1024;  // stages start at multiples of 1024
};

struct LinearPlan {
  int splits = 1;  // blocks of a cluster
  int weight_stages = 1, row_stages = 1;
  int steps = 0;                                  // stages in all of `in`
  int rows_at = 0, sums_at = 0, barriers_at = 0;  // in shared memory
};

// More layers of the same x and `in`, in the same launch: their tiles follow those of the first.
struct Others {
  int count = 0;
  struct Other {
    CUtensorMap weights;
    Linear layer;
  } other[kMostLayersAtOnce - 1];
};

#if BASED_HAS_WGMMA
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
__device__ __forceinline__ uint32_t address_in_block(uint32_t shared, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
// To a block of the cluster, whose barrier hears of it.
__device__ __forceinline__ void send_float4(uint32_t there, uint32_t barrier, float a, float b, float c, float d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(a), "f"(b),
               "f"(c), "f"(d), "r"(barrier)
               : "memory");
}
// All that multiply; of kScaled, they have then heard of the warp that makes the scales. Other barriers are the groups' own.
template <int kGroups, bool kScaled>
__device__ __forceinline__ void multipliers_barrier() {
  asm volatile("bar.sync 8, %0;" ::"n"(kGroups * kGroup + 32 * kScaled) : "memory");
}
template <int kGroups>
__device__ __forceinline__ void scales_are_made() {
  asm volatile("bar.arrive 8, %0;" ::"n"(kGroups * kGroup + 32) : "memory");
}

// 32 outputs and their gates, 8 of these after 8 of those, so that the same thread gets the sums of both; `group`: of 8 outputs.
__device__ __forceinline__ void load_pairs(uint32_t shared, const CUtensorMap& map, int column, int group, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(0), "r"(group), "r"(barrier)
      : "memory");
}

// d += 64 weights' rows · kRows rows of x, 16 elements of k.
template <int kRows>
__device__ __forceinline__ void multiply(float (&d)[kRows / 2], uint64_t weight, uint64_t x) {
  if constexpr (kRows == 8) wgmma_64x8x16_shared(d, weight, x, true);
  if constexpr (kRows == 16) wgmma_64x16x16_shared(d, weight, x, true);
  if constexpr (kRows == 32) wgmma_64x32x16_shared(d, weight, x, true);
  if constexpr (kRows == 64) wgmma_64x64x16_shared(d, weight, x, true);
  if constexpr (kRows == 128) wgmma_64x128x16_shared(d, weight, x, true);
}

template <int kRows, LinearForm kForm>
struct LinearBlock {  // a block's place; of SwiGLU, the outputs are 32 u and their gates
  using Memory = LinearLayout<kRows>;
  static constexpr int kSlabs = Memory::kSlabs, kGroups = Memory::kGroups, kUnits = Memory::kGroupRows / 8;
  const LinearPlan& plan;
  uint32_t base;  // of shared memory
  int split, first_out, first_row, first, steps;

  __device__ __forceinline__ LinearBlock(const LinearPlan& of, uint32_t shared, int tile) : plan(of), base((shared + 1023) & ~1023U) {
    split = static_cast<int>(blockIdx.x) % plan.splits, first_out = tile * outputs_of(kForm);
    first_row = kRows == 128 ? static_cast<int>(blockIdx.y) * kRows : 0;
    first = plan.steps * split / plan.splits, steps = plan.steps * (split + 1) / plan.splits - first;
  }
  __device__ __forceinline__ uint32_t weights_at(const RingPlace& r) const { return base + r.slot * Memory::kWeightBytes; }
  __device__ __forceinline__ uint32_t rows_at(const RingPlace& r) const { return base + plan.rows_at + r.slot * Memory::kRowBytes; }
  __device__ __forceinline__ uint32_t weights_here(const RingPlace& r) const { return base + plan.barriers_at + r.slot * 8; }
  __device__ __forceinline__ uint32_t rows_here(const RingPlace& r) const { return weights_here(r) + 8 * kMostStages; }
  __device__ __forceinline__ uint32_t consumed(const RingPlace& r) const { return weights_here(r) + 16 * kMostStages; }
  __device__ __forceinline__ uint32_t sums_here(int group) const { return base + plan.barriers_at + 24 * kMostStages + group * 8; }
  __device__ __forceinline__ uint32_t sums_at(int group) const {
    return base + plan.sums_at + group * max(kUnits, plan.splits) * kUnitBytes;
  }
  // Where a group turns its y into rows, when the stages have been read.
  __device__ __forceinline__ uint32_t tile(int group) const { return base + group * kUnits * 8 * kLinearOutputs * 2; }
  __device__ __forceinline__ uint32_t scales_at() const { return base + plan.barriers_at + kBarrierBytes; }

  // By all lanes of a warp, a stage each.
  __device__ __forceinline__ void init_barriers() const {
    RingPlace r;
    r.slot = threadIdx.x % 32;
    for (int group = 0; group < (r.slot == 31 ? kGroups : 0); ++group) {  // by one lane: racecheck follows that
      const uint32_t here = sums_here(group);
      barrier_init(here);
      if (plan.splits > 1 && split < kUnits) barrier_expect(here, (plan.splits - 1) * max(1, kUnits / plan.splits) * kUnitBytes);
    }
    if (r.slot < plan.weight_stages) barrier_init(weights_here(r));
    if (r.slot < plan.row_stages) barrier_init(rows_here(r)), barrier_init(consumed(r), kGroups * kGroup / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_shared_proxy();
    __syncwarp();
  }
  __device__ __forceinline__ void request_weights(const CUtensorMap& weights, int step, const RingPlace& r) const {
    barrier_expect(weights_here(r), Memory::kWeightBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      const uint32_t to = weights_at(r) + slab * kLinearOutputs * 128;
      const int column = ((first + step) * kSlabs + slab) * kSlab;
      if constexpr (kForm == LinearForm::swiglu) {
        load_pairs(to, weights, column, first_out / 8, weights_here(r));
      } else {
        load_box(to, weights, column, first_out, weights_here(r));
      }
    }
  }
  __device__ __forceinline__ void request_rows(const CUtensorMap& rows, int step, const RingPlace& r) const {
    barrier_expect(rows_here(r), Memory::kRowBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
      load_box(rows_at(r) + slab * kRows * 128, rows, ((first + step) * kSlabs + slab) * kSlab, first_row, rows_here(r));
  }
  // One thread; these three in this order.
  __device__ __forceinline__ void request_first_weights(const CUtensorMap& weights) const {
    for (RingPlace r; r.slot < min(steps, plan.weight_stages); ++r.slot) request_weights(weights, r.slot, r);
  }
  __device__ __forceinline__ void request_first_rows(const CUtensorMap& rows) const {
    for (RingPlace r; r.slot < min(steps, plan.row_stages); ++r.slot) request_rows(rows, r.slot, r);
  }
  __device__ __forceinline__ void request_the_rest(const CUtensorMap& weights, const CUtensorMap& rows) const {
    RingPlace weight, row;
    for (int step = 0; step + plan.row_stages < steps; ++step) {
      barrier_wait(consumed(row), row.phase);
      request_rows(rows, step + plan.row_stages, row);
      if (step + plan.weight_stages < steps) request_weights(weights, step + plan.weight_stages, weight);
      row.advance(plan.row_stages), weight.advance(plan.weight_stages);
    }
  }
  __device__ __forceinline__ void multiply_all(float (&d)[4 * kUnits], int group) const {
    RingPlace weight, row;
    uint32_t before = 0;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(weights_here(weight), weight.phase);
      barrier_wait(rows_here(row), row.phase);
      wgmma_begin();
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        const uint64_t w = operand(weights_at(weight) + slab * kLinearOutputs * 128, 0, 1024, Swizzle::bytes128);
        const uint64_t x = operand(rows_at(row) + (slab * kRows + group * Memory::kGroupRows) * 128, 0, 1024, Swizzle::bytes128);
#pragma unroll
        for (int k = 0; k < kSlab / 16; ++k) multiply<Memory::kGroupRows>(d, w + 2 * k, x + 2 * k);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the step before this one has been read
      if (step > 0 && threadIdx.x % 32 == 0) barrier_arrive(before);
      before = consumed(row);
      row.advance(plan.row_stages), weight.advance(plan.weight_stages);
    }
    wgmma_wait<0>();
    accumulator_fence(d);
  }
};

// Of the block's rows of x in the order of the norm before it, by one warp: 1 / rms from the tiles' sums of squares, added up in their
// order.
template <int kRows>
__device__ __forceinline__ void make_scales(const NormBefore& norm, int64_t width, uint32_t to) {
  constexpr int kLanes = kRows / 4, kGroups = 32 / kLanes, kTogether = 32 / kGroups;  // lanes of four rows each; parts under way
  const int lane = threadIdx.x % 32, group = lane / kLanes, row = lane % kLanes * 4;
  const float* squares = norm.squares + (kRows == 128 ? blockIdx.y * norm.parts * kRows : 0) + row;
  float4 sum = {};
  for (int64_t first = group; first < norm.parts; first += 32) {
    float4 part[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int64_t at = first + i * kGroups;
      part[i] = at < norm.parts ? __ldcg(reinterpret_cast<const float4*>(squares + at * kRows)) : float4{};
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
  }
#pragma unroll
  for (int distance = 16; distance >= kLanes; distance /= 2) {
    sum.x += __shfl_xor_sync(~0U, sum.x, distance), sum.y += __shfl_xor_sync(~0U, sum.y, distance);
    sum.z += __shfl_xor_sync(~0U, sum.z, distance), sum.w += __shfl_xor_sync(~0U, sum.w, distance);
  }
  const float mean = 1 / static_cast<float>(width);
  if (group == 0)
    store_shared_float4(to + row * 4, rsqrtf(fmaf(sum.x, mean, norm.eps)), rsqrtf(fmaf(sum.y, mean, norm.eps)),
                        rsqrtf(fmaf(sum.z, mean, norm.eps)), rsqrtf(fmaf(sum.w, mean, norm.eps)));
}

// The parts of the sums from all blocks of a cluster, added up in order; each block does it for some of the rows and ends those.
template <typename Y, LinearForm kForm, bool kScaled, int kRows, int kSplits>
__device__ __forceinline__ void add_up(Epilogue<Y, kForm, kScaled>& end, const float (&d)[LinearBlock<kRows, kForm>::kUnits * 4],
                                       const LinearBlock<kRows, kForm>& block, int group) {
  constexpr int kUnits = LinearBlock<kRows, kForm>::kUnits, kOwned = kUnits > kSplits ? kUnits / kSplits : 1;
  constexpr int kBatch = kOwned < kHeldUnits ? kOwned : kHeldUnits;  // units whose parts are under way at once
  const int split = block.split, group_row = group * kUnits * 8;
  const uint32_t mine = block.sums_at(group) + threadIdx.x % kGroup * 16, here = block.sums_here(group);
  static_assert(kForm == LinearForm::adds || kOwned <= kBatch, "a batch has the tile to itself");
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int owner = u / kOwned;
    const uint32_t to = mine + (kSplits == 1 ? u : split * kOwned + u % kOwned) * kUnitBytes;
    if (kSplits == 1 || owner == split) {
      store_shared_float4(to, d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3]);
    } else {
      send_float4(address_in_block(to, owner), address_in_block(here, owner), d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3]);
    }
  }
  if (split >= kUnits) return;
  if constexpr (kSplits > 1) barrier_wait(here, 0);
#pragma unroll 1
  for (int first = 0; first < kOwned; first += kBatch) {
    const uint32_t place = mine + first * kUnitBytes;
    float4 sum[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      sum[u] = load_shared_float4(place + u * kUnitBytes);
#pragma unroll
      for (int s = 1; s < kSplits; ++s) {
        const float4 part = load_shared_float4(place + (s * kOwned + u) * kUnitBytes);
        sum[u].x += part.x, sum[u].y += part.y, sum[u].z += part.z, sum[u].w += part.w;
      }
    }
    const int first_row = group_row + (split * kOwned + first) * 8;
    if constexpr (kForm != LinearForm::adds) {
      end.write(sum, block.tile(group), first_row);
    } else {
      end.template add<kRows>(sum, place, first_row);
      if (first + kBatch < kOwned) end.request_residual(first_row + 8 * kBatch, kBatch);
    }
  }
  if constexpr (kForm == LinearForm::adds) end.template write_squares<kRows>(group_row + split * kOwned * 8, kOwned * 8);
}

// Without a cluster: y comes from registers; what is added to the stream goes through the sums' memory, as with one.
template <typename Y, LinearForm kForm, bool kScaled, int kRows>
__device__ __forceinline__ void epilogue_alone(Epilogue<Y, kForm, kScaled>& end, const float (&d)[LinearBlock<kRows, kForm>::kUnits * 4],
                                               const LinearBlock<kRows, kForm>& block, int group) {
  if constexpr (kForm == LinearForm::adds) {
    add_up<Y, kForm, kScaled, kRows, 1>(end, d, block, group);
  } else {
    constexpr int kUnits = LinearBlock<kRows, kForm>::kUnits;
    float4 sum[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) sum[u] = make_float4(d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3]);
    end.write(sum, block.tile(group), group * kUnits * 8);
  }
}
#endif

template <int kRows, bool kScaled>
constexpr int kThreads = LinearLayout<kRows>::kGroups* kGroup + 32 + 32 * kScaled;

template <typename Y, LinearForm kForm, bool kScaled, int kRows>
__global__ void __launch_bounds__(kThreads<kRows, kScaled>, kRows == 128 ? 1 : 2)
    many_rows(const __grid_constant__ Linear first_layer, const __grid_constant__ Others others, const __grid_constant__ JoinedNorm norm,
              const __grid_constant__ LinearPlan plan, const __grid_constant__ CUtensorMap first_weights,
              const __grid_constant__ CUtensorMap rows) {
#if BASED_HAS_WGMMA
  extern __shared__ char memory[];
  constexpr int kGroups = LinearLayout<kRows>::kGroups, kUnits = LinearLayout<kRows>::kGroupRows / 8;
  int tile = static_cast<int>(blockIdx.x) / plan.splits;
  const Linear* layer = &first_layer;
  const CUtensorMap* map = &first_weights;
  if constexpr (kForm == LinearForm::plain && kScaled) {
    for (int i = 0; i < others.count; ++i) {
      const int tiles = static_cast<int>(layer->out + kLinearOutputs - 1) / kLinearOutputs;
      if (tile < tiles) break;
      tile -= tiles, layer = &others.other[i].layer, map = &others.other[i].weights;
    }
  }
  const Linear& p = *layer;
  const CUtensorMap& weights = *map;
  const LinearBlock<kRows, kForm> block(plan, shared_address(memory), tile);
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const bool requests = warp == kGroups * kGroup / 32, first_lane = threadIdx.x % 32 == 0;
  if (requests) {
    if (first_lane) prefetch_map(weights), prefetch_map(rows);
    block.init_barriers();
    if (first_lane && p.weight_is_constant) block.request_first_weights(weights);
    __syncwarp();
  }
  let_next_kernel_start();
  if (plan.splits > 1) cluster_arrive_relaxed(), cluster_wait();
  __syncthreads();
  if (requests) {
    if (first_lane) {
      wait_for_earlier_kernels();
      block.request_first_rows(rows);
      if (!p.weight_is_constant) block.request_first_weights(weights);
      block.request_the_rest(weights, rows);
    }
    return;
  }
  if constexpr (kScaled) {
    if (warp >= kGroups * kGroup / 32) {
      wait_for_earlier_kernels();
      make_scales<kRows>(norm.before, p.in, block.scales_at());
      __syncwarp();
      return scales_are_made<kGroups>();
    }
  }
  const int group = warp / (kGroup / 32);
  if (!p.weight_is_constant) wait_for_earlier_kernels();
  Epilogue<Y, kForm, kScaled> end(p, norm, block.scales_at(), block.first_out, block.first_row);
  if constexpr (kForm == LinearForm::adds) {
    const int owned = max(1, kUnits / plan.splits);
    wait_for_earlier_kernels();
    end.request_residual((group * kUnits + block.split * owned) * 8, min(owned, kHeldUnits));
  }
  float d[4 * kUnits] = {};
  block.multiply_all(d, group);
  wait_for_earlier_kernels();               // before this thread writes anything that they read
  multipliers_barrier<kGroups, kScaled>();  // nobody reads the stages any more: y is transposed there, or sums go there
  switch (plan.splits) {
    case 1: return epilogue_alone(end, d, block, group);
    case 2: return add_up<Y, kForm, kScaled, kRows, 2>(end, d, block, group);
    case 4: return add_up<Y, kForm, kScaled, kRows, 4>(end, d, block, group);
    default: return add_up<Y, kForm, kScaled, kRows, 8>(end, d, block, group);
  }
#else
  __trap();
#endif
}

int64_t tiles_of(const Linear& p) { return ceil_div(p.out, kLinearOutputs) * ceil_div(p.rows, kLinearRows); }

// As many splits as multiprocessors are free, while a part of `in` is long enough to be worth the adding up. Measured: with few rows that
// is cheap, and a second block on each multiprocessor pays for long parts; with many, parts of less than 768 cost more than they save,
// it seems since the next layer's blocks can begin on multiprocessors that are left free.
template <int kRows>
int choose_splits(const Linear& p, int steps) {
  const int64_t tiles = tiles_of(p), places = multiprocessors();
  int splits = 1;
  while (splits < kMostSplits && 2 * splits <= steps) {
    const int64_t blocks = tiles * 2 * splits, part = p.in / (2 * splits);
    const bool worth = kRows == 128 ? blocks <= places && (part >= 768 || 2 * blocks <= places)
                                    : blocks <= places || (blocks <= 2 * places && part >= 768);
    if (!worth) break;
    splits *= 2;
  }
  return splits;
}

template <int kRows>
LinearPlan make_plan(const Linear& p) {
  using Memory = LinearLayout<kRows>;
  LinearPlan plan;
  plan.steps = static_cast<int>(ceil_div(p.in, Memory::kDepth));
  plan.splits = choose_splits<kRows>(p, plan.steps);
  const int most = static_cast<int>(ceil_div(plan.steps, plan.splits));
  const int units = Memory::kGroups * std::max(Memory::kGroupRows / 8, plan.splits);
  const int sums = plan.splits == 1 ? 0 : units * kUnitBytes;
  plan.row_stages = std::min(most, Memory::kRowStages);
  const int left = Memory::kLimit - sums - plan.row_stages * Memory::kRowBytes;
  plan.weight_stages = std::min({most, kMostStages, left / Memory::kWeightBytes});
  plan.row_stages = std::min(plan.row_stages, plan.weight_stages);
  plan.rows_at = plan.weight_stages * Memory::kWeightBytes;
  const int rings = plan.rows_at + plan.row_stages * Memory::kRowBytes;
  plan.sums_at = plan.splits == 1 ? 0 : rings;
  plan.barriers_at = plan.splits == 1 ? std::max(rings, units * kUnitBytes) : rings + sums;
  return plan;
}

Status describe_weights(CUtensorMap& map, const Linear& p, bool swiglu) {
  if (!swiglu) return describe_matrix(map, p.weight, p.out, p.in, p.weight_stride, kLinearOutputs);
  const int64_t width = p.out / 2, row = p.weight_stride * 2;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(p.in), 8, 2, static_cast<cuuint64_t>(width / 8)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(width * row), static_cast<cuuint64_t>(8 * row)};
  return describe_tiles(map, p.weight, sizes, strides, {kSlab, 8, 2, kLinearOutputs / 16});
}

using Layers = std::span<const Linear>;  // of one launch

template <typename Y, LinearForm kForm, bool kScaled, int kRows>
Status run(Layers layers, const JoinedNorm& norm, Stream stream) {
  const Linear& p = layers[0];
  Linear all = p;
  Others others;
  for (const Linear& layer : layers.subspan(1)) {
    auto& other = others.other[others.count++];
    other.layer = layer;
    if (const Status s = describe_weights(other.weights, layer, false); !s.ok()) return s;
    all.out = round_up(all.out, kLinearOutputs) + layer.out;
  }
  const LinearPlan plan = make_plan<kRows>(all);
  CUtensorMap weights, rows;
  if (const Status s = describe_weights(weights, p, kForm == LinearForm::swiglu); !s.ok()) return s;
  if (const Status s = describe_matrix(rows, p.x, p.rows, p.in, p.x_stride, kRows); !s.ok()) return s;
  auto* kernel = many_rows<Y, kForm, kScaled, kRows>;
  const int shared = plan.barriers_at + LinearLayout<kRows>::kEndBytes + 1024;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(ceil_div(all.out, kLinearOutputs) * plan.splits);
  const Launch launch{dim3(blocks, static_cast<unsigned>(ceil_div(p.rows, kLinearRows))), kThreads<kRows, kScaled>, shared,
                      static_cast<unsigned>(plan.splits)};
  return launch_overlapped(kernel, launch, stream, p, others, norm, plan, weights, rows);
}

template <typename Y, LinearForm kForm, bool kScaled = false>
Status choose_rows(Layers layers, const JoinedNorm& norm, Stream stream) {
  const int64_t rows = layers[0].rows;
  if (rows <= 8) return run<Y, kForm, kScaled, 8>(layers, norm, stream);
  if (rows <= 16) return run<Y, kForm, kScaled, 16>(layers, norm, stream);
  if (rows <= 32) return run<Y, kForm, kScaled, 32>(layers, norm, stream);
  return rows <= 64 ? run<Y, kForm, kScaled, 64>(layers, norm, stream) : run<Y, kForm, kScaled, 128>(layers, norm, stream);
}

}  // namespace

Status linear_sm90(const Linear& p, Stream stream) {
  return p.y_dtype == DType::bf16 ? choose_rows<bf16, LinearForm::plain>({&p, 1}, {}, stream)
                                  : choose_rows<float, LinearForm::plain>({&p, 1}, {}, stream);
}

Status linear_swiglu_sm90(const Linear& p, Stream stream) { return choose_rows<bf16, LinearForm::swiglu>({&p, 1}, {}, stream); }

}  // namespace detail

Status linear_before_norm(const Linear& p, const NormAfter& after, Stream stream) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::adds>({&p, 1}, {{}, after}, stream);
}

Status linears_after_norm(std::span<const Linear> layers, const NormBefore& before, Stream stream) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::plain, true>(layers, {before, {}}, stream);
}

Status linear_swiglu_after_norm(const Linear& p, const NormBefore& before, Stream stream) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::swiglu, true>({&p, 1}, {before, {}}, stream);
}

}  // namespace based::kernels::cuda
