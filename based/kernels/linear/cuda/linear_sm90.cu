// Linear layer of 2 to 512 rows in bf16 (decoding of many sequences), bound by the L2 bandwidth of a multiprocessor and by chains of
// latencies. A block owns 64 outputs, up to 128 rows (or more of both, see LinearTile), and one of `splits` parts of `in`. The blocks of
// the same outputs form a cluster. They send their sums to the block that owns the rows, which adds them in a fixed order. One producer
// warp loads and four warps multiply (with 128 rows, eight: four per half). Constant weights are prefetched before the previous kernels
// have ended. The ring of weights is separate from the ring of rows, so that weights can be prefetched far ahead.
#include <algorithm>
#include <cstddef>
#include <span>

#include "based/kernels/common/cuda/tensor_map.h"
#include "based/kernels/linear/cuda/linear_epilogue_sm90.cuh"

namespace based::kernels::cuda {
namespace detail {
namespace {

constexpr int kSlab = 64;  // elements of `in`, 128 bytes, as wide as the swizzle
constexpr int kMaxStages = 16;

// The end of a block's shared memory, after the ring of weights, the ring of rows, and the cluster's sums (without a cluster they reuse the
// rings). The producer fills a stage of a ring and waits for `empty`; the consumers wait for `full`.
template <class Tile>
struct LinearStorage {
  uint64_t weights_full[kMaxStages], rows_full[kMaxStages], rows_empty[kMaxStages];  // mbarriers of the stages
  uint64_t sums_full[4];                                                             // mbarriers, one per warpgroup: the cluster's sums
  float scales[4 * Tile::kRows];  // for norms: the scale of each row, or the sums of squares [4 warps, rows]
};

// The rows and outputs of a block, how its warpgroups divide them, and the sizes of its shared memory. A warpgroup multiplies 64 outputs by
// kGroupRows rows. Up to 64 rows, two blocks fit on a multiprocessor: one of this layer and one of the next layer, which waits for it.
// With more rows, a deep ring of small stages is faster (measured). More than 128 rows may have larger tiles, so that all blocks run at
// once.
template <int kTileRows, int kTileOutputs = kLinearOutputs>
struct LinearTile {
  static constexpr int kRows = kTileRows, kOutputs = kTileOutputs;
  static constexpr bool kWide = kOutputs > kLinearOutputs;
  static constexpr int kGroupRows = kRows < 128 ? kRows : kWide ? 128 : 64;
  static constexpr int kRowGroups = kRows / kGroupRows, kOutputGroups = kOutputs / kLinearOutputs, kGroups = kRowGroups * kOutputGroups;
  static constexpr int kSlabs = kRows < 64 ? 2 : 1;  // 64-element slabs per stage
  static constexpr int kDepth = kSlabs * kSlab;
  static constexpr int kWeightBytes = kSlabs * kOutputs * 128, kRowBytes = kSlabs * kRows * 128;  // bytes per stage
  static constexpr int kRowStages = kWide ? (kRows == 128 ? 6 : 4) : kRows == 128 ? 7 : kRows == 64 ? 5 : 4;
  static constexpr int kMaxSplits = kWide ? 1 : 8;
  static constexpr int kEndBytes = static_cast<int>(sizeof(LinearStorage<LinearTile>));
  static constexpr int kLimit = (kWide ? 224 : kRows == 128 ? 205 : 113) * 1024 - kEndBytes - 1024;  // 1024: alignment of the stages
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

// Loads the weights of 32 pairs (has_pairs), alternating 8 outputs of the first half and their 8 partners, so that the same thread gets
// both sums of a pair. `group` is the index of the first group of 8 outputs.
__device__ __forceinline__ void load_pairs(uint32_t shared, const CUtensorMap& map, int column, int group, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(0), "r"(group), "r"(barrier)
      : "memory");
}

// d (+)= 64 rows of weights · kRows rows of x, over 16 elements of k.
template <int kRows>
__device__ __forceinline__ void multiply(float (&d)[kRows / 2], uint64_t weight, uint64_t x, bool accumulate) {
  if constexpr (kRows == 8) wgmma_64x8x16_shared(d, weight, x, accumulate);
  if constexpr (kRows == 16) wgmma_64x16x16_shared(d, weight, x, accumulate);
  if constexpr (kRows == 32) wgmma_64x32x16_shared(d, weight, x, accumulate);
  if constexpr (kRows == 64) wgmma_64x64x16_shared(d, weight, x, accumulate);
  if constexpr (kRows == 128) wgmma_64x128x16_shared(d, weight, x, accumulate);
}

template <class Tile, LinearForm kForm>
struct LinearBlock {  // the block's part of the problem; with pairs, 64 outputs are 32 pairs
  static constexpr int kSlabs = Tile::kSlabs, kRows = Tile::kRows, kUnits = Tile::kGroupRows / 8;
  using Storage = LinearStorage<Tile>;
  // Byte offsets of the members of Storage.
  static constexpr int kRowsFull = offsetof(Storage, rows_full), kRowsEmpty = offsetof(Storage, rows_empty),
                       kSumsFull = offsetof(Storage, sums_full), kScales = offsetof(Storage, scales);
  static_assert(offsetof(Storage, weights_full) == 0);
  const LinearPlan& plan;
  uint32_t base;  // shared memory, aligned to 1024 bytes
  int split, first_out, first_row, first_step, steps;

  __device__ __forceinline__ LinearBlock(const LinearPlan& linear_plan, uint32_t shared, int tile)
      : plan(linear_plan), base((shared + 1023) & ~1023U) {
    split = static_cast<int>(blockIdx.x) % plan.splits, first_out = tile * Tile::kOutputGroups * outputs_of(kForm);
    first_row = kRows >= kLinearRows ? static_cast<int>(blockIdx.y) * kRows : 0;
    first_step = plan.steps * split / plan.splits, steps = plan.steps * (split + 1) / plan.splits - first_step;
  }
  __device__ __forceinline__ uint32_t weights_address(const RingPlace& r) const { return base + r.slot * Tile::kWeightBytes; }
  __device__ __forceinline__ uint32_t rows_address(const RingPlace& r) const { return base + plan.rows_offset + r.slot * Tile::kRowBytes; }
  __device__ __forceinline__ uint32_t weights_full(const RingPlace& r) const { return base + plan.end_offset + r.slot * 8; }
  __device__ __forceinline__ uint32_t rows_full(const RingPlace& r) const { return weights_full(r) + kRowsFull; }
  __device__ __forceinline__ uint32_t rows_empty(const RingPlace& r) const { return weights_full(r) + kRowsEmpty; }
  __device__ __forceinline__ uint32_t sums_full(int group) const { return base + plan.end_offset + kSumsFull + group * 8; }
  __device__ __forceinline__ uint32_t sums_address(int group) const {
    return base + plan.sums_offset + group * max(kUnits, plan.splits) * kUnitBytes;
  }
  // The first output and the first row of a warpgroup.
  __device__ __forceinline__ int group_out(int group) const { return first_out + group / Tile::kRowGroups * outputs_of(kForm); }
  __device__ __forceinline__ int group_row(int group) const { return group % Tile::kRowGroups * Tile::kGroupRows; }
  // Buffer in which a group transposes its y. It reuses the stages after they have been read.
  __device__ __forceinline__ uint32_t tile(int group) const { return base + group * kUnits * 8 * kLinearOutputs * 2; }
  __device__ __forceinline__ uint32_t scales_address() const { return base + plan.end_offset + kScales; }

  __device__ __forceinline__ void load_weights(const CUtensorMap& weights, int step, const RingPlace& r) const {
    barrier_expect(weights_full(r), Tile::kWeightBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      const uint32_t stage = weights_address(r) + slab * Tile::kOutputs * 128;
      const int column = ((first_step + step) * kSlabs + slab) * kSlab;
      if constexpr (has_pairs(kForm)) {
        load_pairs(stage, weights, column, first_out / 8, weights_full(r));
      } else {
        load_box(stage, weights, column, first_out, weights_full(r));
      }
    }
  }
  __device__ __forceinline__ void load_rows(const CUtensorMap& rows, int step, const RingPlace& r) const {
    barrier_expect(rows_full(r), Tile::kRowBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
      load_box(rows_address(r) + slab * kRows * 128, rows, ((first_step + step) * kSlabs + slab) * kSlab, first_row, rows_full(r));
  }
};

// The end of the layer, by the consumers. The partial sums of a cluster's blocks are added in a fixed order. Each block owns some of the
// rows: it adds up their sums and turns them into the result. Without a cluster (kSplits = 1) y is stored directly from registers, and sums
// that are added to the residual stream pass through shared memory, as with a cluster.
template <typename Y, bool kScaled, int kSplits, class Tile, LinearForm kForm>
__device__ __forceinline__ void finish(const Linear& p, const JoinedParts& joined, const LinearBlock<Tile, kForm>& block, int group,
                                       const float (&d)[LinearBlock<Tile, kForm>::kUnits * 4], EpilogueInputs<kForm>& inputs,
                                       LaneConv<LinearBlock<Tile, kForm>::kUnits, kForm>& lane_conv) {
  constexpr bool kAdds = kForm == LinearForm::adds, kFromRegisters = kSplits == 1 && !kAdds;
  constexpr int kRows = Tile::kRows, kUnits = Tile::kGroupRows / 8, kOwned = kUnits > kSplits ? kUnits / kSplits : 1;
  constexpr int kBatch = kFromRegisters || kOwned < kHeldUnits ? kOwned : kHeldUnits;  // units that are reduced together
  static_assert(kAdds || kOwned <= kBatch, "the units of a batch fill the tile alone");
  static_assert(!kAdds || !Tile::kWide, "sums of squares are those of kLinearRows rows and kLinearOutputs outputs");
  const int thread = static_cast<int>(threadIdx.x % kGroup), warp = thread / 32, lane = static_cast<int>(threadIdx.x % 32);
  const int split = block.split, group_row = block.group_row(group);
  const uint32_t thread_sums = block.sums_address(group) + thread * 16, scales = block.scales_address();
  const int64_t out = inputs.out;
  const NormAfter& norm = joined.after;
  const float bias[4] = {low_float(inputs.bias.x), kAdds ? high_float(inputs.bias.x) : low_float(inputs.bias.y), low_float(inputs.bias.y),
                         high_float(inputs.bias.y)};  // the latter two in form `adds`
  const float norm_weight[4] = {low_float(inputs.weight.x), high_float(inputs.weight.x), low_float(inputs.weight.y),
                                high_float(inputs.weight.y)};  // in form `adds`

  // Send the sums to the blocks that own their rows.
  if constexpr (!kFromRegisters) {
    const uint32_t barrier = block.sums_full(group);
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
  }

#pragma unroll 1
  for (int first = 0; first < kOwned; first += kBatch) {
    // Add up the sums of a batch.
    const uint32_t batch_sums = thread_sums + first * kUnitBytes;
    const int first_row = group_row + (split * kOwned + first) * 8;  // in the block
    float4 sum[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      sum[u] = kFromRegisters ? make_float4(d[4 * u], d[4 * u + 1], d[4 * u + 2], d[4 * u + 3])
                              : load_shared_float4(batch_sums + u * kUnitBytes);
#pragma unroll
      for (int s = 1; s < kSplits; ++s) {
        const float4 part = load_shared_float4(batch_sums + (s * kOwned + u) * kUnitBytes);
        sum[u].x += part.x, sum[u].y += part.y, sum[u].z += part.z, sum[u].w += part.w;
      }
    }

    if constexpr (kAdds) {
      // Round the sums as y would be rounded, and add them to the residual stream. Each warp stores its part of the rows' sums of squares.
      exchange_fragments(sum, batch_sums, [&](int u, const float4& v) {
        const int row = first_row + 8 * u + lane / 4;
        const int64_t y_row = block.first_row + row;
        const bool valid = y_row < p.rows && out < p.out;
        const float y[4] = {v.x + bias[0], v.y + bias[1], v.z + bias[2], v.w + bias[3]};
        const float x[4] = {inputs.residual[u].x, inputs.residual[u].y, inputs.residual[u].z, inputs.residual[u].w};
        float s[4], z[4], squares = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[i] = x[i] + to_float(from_float<bf16>(y[i])), z[i] = s[i] * norm_weight[i];
          squares = valid ? fmaf(s[i], s[i], squares) : 0.0F;
        }
        if (valid) {
          store_floats<4>(norm.sum + y_row * p.out + out, s);
          store_floats<4>(static_cast<bf16*>(norm.y) + y_row * p.out + out, z);
        }
        squares += __shfl_xor_sync(~0U, squares, 1), squares += __shfl_xor_sync(~0U, squares, 2);
        if (lane % 4 == 0) store_shared_float(scales + (warp * kRows + row) * 4, squares);
      });
      if (first + kBatch < kOwned) inputs.prefetch_residual(p, norm, block.first_row + first_row + 8 * kBatch, kBatch);
    } else {
      // Compute y. A lane holds two rows of two outputs, which are 8 apart, or are a pair. Results in bf16 are transposed
      // in `tile` [rows, 128 or 64 bytes], so that a few wide stores write whole cache lines.
      const uint32_t tile = block.tile(group);
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const float2 r =
            kScaled ? load_shared_float2(scales + static_cast<uint32_t>(first_row + 8 * u + lane % 4 * 2) * 4) : make_float2(1, 1);
        const float a[2] = {fmaf(sum[u].x, r.x, bias[0]), fmaf(sum[u].y, r.y, bias[0])};
        const float b[2] = {fmaf(sum[u].z, r.x, bias[1]), fmaf(sum[u].w, r.y, bias[1])};
        const int row = 8 * u + lane % 8;
        if constexpr (kForm == LinearForm::conv_of_half) {
          const uint32_t address = tile + row * 128 + ((warp + lane / 8 % 2 * 4) ^ (row % 8)) * 16;
          stmatrix_transposed(address, pack_bf16(lane_conv.convolve(u, 0, a[0]), lane_conv.convolve(u, 1, a[1])), pack_bf16(b[0], b[1]));
        } else if constexpr (has_pairs(kForm)) {
          const uint32_t address = tile + row * 64 + (warp ^ (row / 2 % 4)) * 16;
          float y[2];
          if constexpr (kForm == LinearForm::swiglu) {
            y[0] = a[0] * b[0] * sigmoid(b[0]), y[1] = a[1] * b[1] * sigmoid(b[1]);
          } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) y[i] = lane_conv.convolve(u, i, a[i]) * to_float(from_float<bf16>(b[i]));
          }
          stmatrix_transposed(address, pack_bf16(y[0], y[1]));
        } else if constexpr (std::is_same_v<Y, float>) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int64_t y_row = block.first_row + first_row + 8 * u + lane % 4 * 2 + i;
            float* y = static_cast<float*>(p.y) + y_row * p.y_stride + out;
            if (y_row < p.rows && out < p.out) *y = a[i];
            if (y_row < p.rows && out + 8 < p.out) y[8] = b[i];
          }
        } else {
          const uint32_t address = tile + row * 128 + ((warp * 2 + lane / 8 % 2) ^ (row % 8)) * 16;
          stmatrix_transposed(address, pack_bf16(a[0], a[1]), pack_bf16(b[0], b[1]));
        }
      }

      // Store the rows of the tile. Adjacent threads store adjacent outputs: eight each where there are pairs, else four.
      if constexpr (std::is_same_v<Y, bf16>) {
        group_barrier(group);  // the tile is complete
        constexpr bool kPairs = has_pairs(kForm), kRest = kForm == LinearForm::conv_of_half;
        constexpr int kThreadsPerRow = kRest ? 8 : kPairs ? 4 : 16, kRowsPerStore = kGroup / kThreadsPerRow;
        const int y_row = block.first_row + first_row, row = thread / kThreadsPerRow;
        const bool is_rest = kRest && thread % 8 >= 4;
        const int column = block.group_out(group) + (kPairs ? thread % 4 * 8 : thread % 16 * 4);
        const int rows = column >= (kPairs ? p.out / 2 : p.out) ? 0 : min(8 * kBatch, static_cast<int>(p.rows) - y_row) - row;
        const int64_t stride = is_rest ? joined.conv.rest_stride : p.y_stride;
        bf16* y = static_cast<bf16*>(is_rest ? joined.conv.rest : p.y) + (y_row + row) * stride + column;
        const uint32_t source = kRest    ? tile + row * 128 + ((thread % 8) ^ (row % 8)) * 16
                                : kPairs ? tile + row * 64 + ((thread % 4) ^ (row / 2 % 4)) * 16
                                         : tile + row * 128 + ((thread % 16 / 2) ^ row) * 16 + thread % 2 * 8;
#pragma unroll
        for (int stored = 0; stored < 8 * kBatch; stored += kRowsPerStore, y += kRowsPerStore * stride) {
          if (stored >= rows) break;
          if constexpr (kPairs) {
            *reinterpret_cast<uint4*>(y) = load_shared_16(source + stored * (kRest ? 128 : 64));
          } else {
            *reinterpret_cast<uint2*>(y) = load_shared_8(source + stored * 128);
          }
        }
      }
    }
  }

  // Add up the four warps' sums of squares of the owned rows, and store them for the next layer's norm.
  if constexpr (kAdds) {
    group_barrier(group);  // the warps' sums of squares are complete
    if (thread >= kOwned * 8) return;
    const int row = group_row + split * kOwned * 8 + thread;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kGroup / 32; ++w) sum += load_shared_float(scales + (w * kRows + row) * 4);
    norm.squares[block.first_row * ((p.out + kLinearOutputs - 1) / kLinearOutputs) + block.first_out / kLinearOutputs * kRows + row] = sum;
  }
}
#endif

template <class Tile, bool kScaled>
constexpr int kThreads = Tile::kGroups* kGroup + 32 + 32 * kScaled;

template <typename Y, LinearForm kForm, bool kScaled, class Tile>
__global__ void __launch_bounds__(kThreads<Tile, kScaled>, Tile::kRows >= kLinearRows ? 1 : 2)
    many_rows(const __grid_constant__ Linear first_layer, const __grid_constant__ FusedLayers fused_layers,
              const __grid_constant__ JoinedParts joined, const __grid_constant__ LinearPlan plan,
              const __grid_constant__ CUtensorMap first_weights, const __grid_constant__ CUtensorMap rows) {
#if BASED_HAS_WGMMA
  extern __shared__ char memory[];
  constexpr int kRows = Tile::kRows, kGroups = Tile::kGroups, kUnits = Tile::kGroupRows / 8;
  int tile = static_cast<int>(blockIdx.x) / plan.splits;
  const Linear* layer = &first_layer;
  const CUtensorMap* map = &first_weights;
  if constexpr (kForm == LinearForm::plain && kScaled) {
    for (int i = 0; i < fused_layers.count; ++i) {
      const int tiles = static_cast<int>(layer->out + Tile::kOutputs - 1) / Tile::kOutputs;
      if (tile < tiles) break;
      tile -= tiles, layer = &fused_layers.entries[i].layer, map = &fused_layers.entries[i].weights;
    }
  }
  const Linear& p = *layer;
  const CUtensorMap& weights = *map;
  const LinearBlock<Tile, kForm> block(plan, shared_address(memory), tile);
  const int steps = block.steps, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const bool is_producer = warp == kGroups * kGroup / 32, first_lane = threadIdx.x % 32 == 0;
  const auto load_first_weights = [&] {
    for (RingPlace stage; stage.slot < min(steps, plan.weight_stages); ++stage.slot) block.load_weights(weights, stage.slot, stage);
  };

  // The producer initialises the barriers, a stage's by each lane, and loads constant weights before the earlier kernels have ended.
  if (is_producer) {
    if (first_lane) prefetch_map(weights), prefetch_map(rows);
    RingPlace stage;
    stage.slot = threadIdx.x % 32;
    for (int group = 0; group < (stage.slot == 31 ? kGroups : 0); ++group) {  // one lane initialises all: racecheck recognises that
      const uint32_t barrier = block.sums_full(group);
      barrier_init(barrier);
      if (plan.splits > 1 && block.split < kUnits) barrier_expect(barrier, (plan.splits - 1) * max(1, kUnits / plan.splits) * kUnitBytes);
    }
    if (stage.slot < plan.weight_stages) barrier_init(block.weights_full(stage));
    if (stage.slot < plan.row_stages) barrier_init(block.rows_full(stage)), barrier_init(block.rows_empty(stage), kGroups * kGroup / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_shared_proxy();
    __syncwarp();  // the barriers are initialised
    if (first_lane && p.weight_is_constant) load_first_weights();
    __syncwarp();
  }
  let_next_kernel_start();
  if (plan.splits > 1) cluster_arrive_relaxed(), cluster_wait();  // the barriers of all blocks of the cluster are initialised
  __syncthreads();                                                // the barriers are initialised

  // The producer: one lane fills the stages of both rings, first those that are empty from the beginning.
  if (is_producer) {
    if (!first_lane) return;
    wait_for_earlier_kernels();
    for (RingPlace stage; stage.slot < min(steps, plan.row_stages); ++stage.slot) block.load_rows(rows, stage.slot, stage);
    if (!p.weight_is_constant) load_first_weights();
    RingPlace weight, row;
    for (int step = 0; step + plan.row_stages < steps; ++step) {
      barrier_wait(block.rows_empty(row), row.phase);
      block.load_rows(rows, step + plan.row_stages, row);
      if (step + plan.weight_stages < steps) block.load_weights(weights, step + plan.weight_stages, weight);
      row.advance(plan.row_stages), weight.advance(plan.weight_stages);
    }
    return;
  }

  // A further warp computes the scales of the rows.
  if constexpr (kScaled) {
    if (warp >= kGroups * kGroup / 32) {
      wait_for_earlier_kernels();
      constexpr int kSquaresRows = kRows < kLinearRows ? kRows : kLinearRows;
      for (int row = 0; row < kRows && (row == 0 || block.first_row + row < p.rows); row += kSquaresRows)
        compute_scales<kSquaresRows>(joined.before, joined.before.squares + (block.first_row + row) * joined.before.parts, p.in,
                                     block.scales_address() + row * 4);
      __syncwarp();  // the scales are complete
      return scales_are_ready<kGroups>();
    }
  }

  // The consumers: load the epilogue's inputs, then multiply stage after stage.
  const int group = warp / (kGroup / 32);
  if (!p.weight_is_constant) wait_for_earlier_kernels();
  EpilogueInputs<kForm> inputs(p, joined.after, block.group_out(group));
  const int owned = max(1, kUnits / plan.splits), owned_row = block.first_row + block.group_row(group) + block.split * owned * 8;
  LaneConv<kUnits, kForm> lane_conv(joined.conv, p, owned_row, inputs.out);
  if constexpr (convolves(kForm)) {
    if (block.split < kUnits) lane_conv.load(owned);
  }
  if constexpr (kForm == LinearForm::adds) {
    wait_for_earlier_kernels();
    inputs.prefetch_residual(p, joined.after, owned_row, min(owned, kHeldUnits));
  }
  float d[4 * kUnits];
  RingPlace weight, row;
  uint32_t previous = 0;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(block.weights_full(weight), weight.phase);
    barrier_wait(block.rows_full(row), row.phase);
    wgmma_begin();
#pragma unroll
    for (int slab = 0; slab < Tile::kSlabs; ++slab) {
      const uint64_t w = operand(block.weights_address(weight) + (slab * Tile::kOutputs + group / Tile::kRowGroups * kLinearOutputs) * 128,
                                 0, 1024, Swizzle::bytes128);
      const uint64_t x = operand(block.rows_address(row) + (slab * kRows + block.group_row(group)) * 128, 0, 1024, Swizzle::bytes128);
#pragma unroll
      for (int k = 0; k < kSlab / 16; ++k) multiply<Tile::kGroupRows>(d, w + 2 * k, x + 2 * k, step > 0 || slab > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the products of the previous step are complete
    if (step > 0 && first_lane) barrier_arrive(previous);
    previous = block.rows_empty(row);
    row.advance(plan.row_stages), weight.advance(plan.weight_stages);
  }
  wgmma_wait<0>();
  accumulator_fence(d), inputs.fence();
  if constexpr (convolves(kForm)) lane_conv.fence();
  if constexpr (kForm == LinearForm::conv_recent) lane_conv.read_words();

  wait_for_earlier_kernels();            // before this thread writes anything that earlier kernels read
  consumer_barrier<kGroups, kScaled>();  // all warps have finished reading the stages; their memory is reused for y or the sums
  if constexpr (Tile::kMaxSplits == 1) {
    finish<Y, kScaled, 1>(p, joined, block, group, d, inputs, lane_conv);
  } else {
    switch (plan.splits) {
      case 1: return finish<Y, kScaled, 1>(p, joined, block, group, d, inputs, lane_conv);
      case 2: return finish<Y, kScaled, 2>(p, joined, block, group, d, inputs, lane_conv);
      case 4: return finish<Y, kScaled, 4>(p, joined, block, group, d, inputs, lane_conv);
      default: return finish<Y, kScaled, 8>(p, joined, block, group, d, inputs, lane_conv);
    }
  }
#else
  __trap();
#endif
}

// Uses as many splits as there are free multiprocessors, as long as a part of `in` is long enough to pay for the reduction. Measured: with
// few rows the reduction is cheap, and even a second block per multiprocessor pays off if parts are long. With many rows, parts shorter
// than 768 cost more than they save, probably because blocks of the next layer could start on the multiprocessors left free.
template <class Tile>
int choose_splits(const Linear& p, int steps) {
  const int64_t tiles = ceil_div(p.out, Tile::kOutputs) * ceil_div(p.rows, Tile::kRows), processors = multiprocessors();
  int splits = 1;
  while (splits < Tile::kMaxSplits && 2 * splits <= steps) {
    const int64_t blocks = tiles * 2 * splits, part = p.in / (2 * splits);
    const bool worth = Tile::kRows >= kLinearRows ? blocks <= processors && (part >= 768 || 2 * blocks <= processors)
                                                  : blocks <= processors || (blocks <= 2 * processors && part >= 768);
    if (!worth) break;
    splits *= 2;
  }
  return splits;
}

template <class Tile>
LinearPlan make_plan(const Linear& p) {
  LinearPlan plan;
  plan.steps = static_cast<int>(ceil_div(p.in, Tile::kDepth));
  plan.splits = choose_splits<Tile>(p, plan.steps);
  const int max_steps = static_cast<int>(ceil_div(plan.steps, plan.splits));
  const int units = Tile::kGroups * std::max(Tile::kGroupRows / 8, plan.splits);
  const int sums = plan.splits == 1 ? 0 : units * kUnitBytes;
  plan.row_stages = std::min(max_steps, Tile::kRowStages);
  const int left = Tile::kLimit - sums - plan.row_stages * Tile::kRowBytes;
  plan.weight_stages = std::min({max_steps, kMaxStages, left / Tile::kWeightBytes});
  plan.row_stages = std::min(plan.row_stages, plan.weight_stages);
  plan.rows_offset = plan.weight_stages * Tile::kWeightBytes;
  const int rings = plan.rows_offset + plan.row_stages * Tile::kRowBytes;
  plan.sums_offset = plan.splits == 1 ? 0 : rings;
  plan.end_offset = plan.splits == 1 ? std::max(rings, units * kUnitBytes) : rings + sums;
  return plan;
}

Status describe_weights(CUtensorMap& map, const Linear& p, bool with_pairs, int outputs) {
  if (!with_pairs) return describe_matrix(map, p.weight, p.out, p.in, p.weight_stride, outputs);
  const int64_t width = p.out / 2, row = p.weight_stride * 2;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(p.in), 8, 2, static_cast<cuuint64_t>(width / 8)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(width * row), static_cast<cuuint64_t>(8 * row)};
  return describe_tiles(map, p.weight, sizes, strides, {kSlab, 8, 2, static_cast<cuuint32_t>(outputs / 16)});
}

using Layers = std::span<const Linear>;  // the layers of one launch

template <typename Y, LinearForm kForm, bool kScaled, class Tile>
Status run(Layers layers, const JoinedParts& joined, Queue queue) {
  const Linear& p = layers[0];
  Linear all = p;
  FusedLayers fused_layers;
  for (const Linear& layer : layers.subspan(1)) {
    FusedLayers::Entry& entry = fused_layers.entries[fused_layers.count++];
    entry.layer = layer;
    if (const Status s = describe_weights(entry.weights, layer, false, Tile::kOutputs); !s.ok()) return s;
    all.out = round_up(all.out, Tile::kOutputs) + layer.out;
  }
  const LinearPlan plan = make_plan<Tile>(all);
  CUtensorMap weights, rows;
  if (const Status s = describe_weights(weights, p, has_pairs(kForm), Tile::kOutputs); !s.ok()) return s;
  if (const Status s = describe_matrix(rows, p.x, p.rows, p.in, p.x_stride, Tile::kRows); !s.ok()) return s;
  auto* kernel = many_rows<Y, kForm, kScaled, Tile>;
  const int shared = plan.end_offset + Tile::kEndBytes + 1024;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(ceil_div(all.out, Tile::kOutputs) * plan.splits);
  const Launch launch{dim3(blocks, static_cast<unsigned>(ceil_div(p.rows, Tile::kRows))), kThreads<Tile, kScaled>, shared,
                      static_cast<unsigned>(plan.splits)};
  return launch_overlapped(kernel, launch, queue, p, fused_layers, joined, plan, weights, rows);
}

template <typename Y, LinearForm kForm, bool kScaled = false>
Status choose_rows(Layers layers, const JoinedParts& joined, Queue queue) {
  const int64_t rows = layers[0].rows;
  if constexpr (std::is_same_v<Y, bf16> && kForm != LinearForm::adds && !convolves(kForm)) {
    // Larger tiles where small ones would need more than one block per multiprocessor, and the larger ones do not.
    const auto blocks = [&](int outputs, int block_rows) {
      int64_t tiles = 0;
      for (const Linear& layer : layers) tiles += ceil_div(layer.out, outputs);
      return tiles * ceil_div(rows, block_rows);
    };
    if (rows > kLinearRows && blocks(kLinearOutputs, kLinearRows) > multiprocessors()) {
      if (blocks(2 * kLinearOutputs, kLinearRows) <= multiprocessors())
        return run<Y, kForm, kScaled, LinearTile<kLinearRows, 2 * kLinearOutputs>>(layers, joined, queue);
      return run<Y, kForm, kScaled, LinearTile<2 * kLinearRows, 2 * kLinearOutputs>>(layers, joined, queue);
    }
  }
  if constexpr (kForm != LinearForm::conv_recent) {  // it has more than kFewConvolvedRows
    if (rows <= 8) return run<Y, kForm, kScaled, LinearTile<8>>(layers, joined, queue);
    if (rows <= 16) return run<Y, kForm, kScaled, LinearTile<16>>(layers, joined, queue);
    if (rows <= 32) return run<Y, kForm, kScaled, LinearTile<32>>(layers, joined, queue);
  }
  return rows <= 64 ? run<Y, kForm, kScaled, LinearTile<64>>(layers, joined, queue)
                    : run<Y, kForm, kScaled, LinearTile<128>>(layers, joined, queue);
}

}  // namespace

Status linear_sm90(const Linear& p, Queue queue) {
  return p.y_dtype == DType::bf16 ? choose_rows<bf16, LinearForm::plain>({&p, 1}, {}, queue)
                                  : choose_rows<float, LinearForm::plain>({&p, 1}, {}, queue);
}

Status linear_swiglu_sm90(const Linear& p, Queue queue) { return choose_rows<bf16, LinearForm::swiglu>({&p, 1}, {}, queue); }

}  // namespace detail

Status linear_before_norm(const Linear& p, const NormAfter& after, Queue queue) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::adds>({&p, 1}, {{}, after, {}}, queue);
}

Status linears_after_norm(std::span<const Linear> layers, const NormBefore& previous, Queue queue) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::plain, true>(layers, {previous, {}, {}}, queue);
}

Status linear_swiglu_after_norm(const Linear& p, const NormBefore& previous, Queue queue) {
  return detail::choose_rows<detail::bf16, detail::LinearForm::swiglu, true>({&p, 1}, {previous, {}, {}}, queue);
}

Status linear_conv_after_norm(const Linear& p, const ShortConv& conv, const NormBefore& previous, Queue queue) {
  if (conv.slot == nullptr) return {"linear_conv_after_norm: the rows must have slots"};
  Linear layer = p;
  layer.y = conv.y, layer.y_stride = conv.y_stride;
  ConvAfter after{
      .state = conv.state, .recent = conv.recent, .slot = conv.slot, .weight = conv.weight, .bias = conv.bias, .silu = conv.silu};
  if (conv.gate == nullptr) after.rest = static_cast<detail::bf16*>(p.y) + conv.channels, after.rest_stride = p.y_stride;
  const auto launch_form = [&]<detail::LinearForm kForm>() {
    return detail::choose_rows<detail::bf16, kForm, true>({&layer, 1}, {previous, {}, after}, queue);
  };
  if (conv.gate == nullptr) return launch_form.operator()<detail::LinearForm::conv_of_half>();
  return conv.recent != nullptr ? launch_form.operator()<detail::LinearForm::conv_recent>()
                                : launch_form.operator()<detail::LinearForm::conv>();
}

namespace {
const DefineLaunchers<LinearStepLaunchers> kLaunchers(Device::cuda, {.before_norm = linear_before_norm,
                                                                     .swiglu_after_norm = linear_swiglu_after_norm,
                                                                     .conv_after_norm = linear_conv_after_norm,
                                                                     .layers_after_norm = linears_after_norm,
                                                                     .layers_of_one_row = linears_of_one_row});
}

}  // namespace based::kernels::cuda
