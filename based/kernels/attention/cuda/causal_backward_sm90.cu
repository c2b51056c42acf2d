// Softmax attention backward on Hopper: bf16, head_dim ≤ 128. With P = exp(scale·S − log_sum_exp) and D_i = Σ_d dy_id y_id:
//   dS = P ∘ (dy vᵀ − D),  dv = Pᵀ dy,  dk = scale·dSᵀ q,  dq = scale·dS k
// Long rows with head_dim ≤ 64 use causal_backward_once_sm90.cu. Here the scores are computed twice: by blocks that own keys of a head and
// loop over the queries that attend to them (dk, dv), and by blocks that own queries and loop over their keys (dq). Each sum belongs to one
// warpgroup and has a fixed order, at the cost of seven products instead of five.
#include <cmath>
#include <type_traits>

#include "based/kernels/attention/cuda/causal_backward_sm90.cuh"
#include "based/kernels/attention/cuda/causal_pairs.h"

namespace based::kernels::cuda::detail::causal {
namespace {

// Shared memory of a block of kGroups warpgroups: the owned tiles (two per warpgroup), the ring of tiles of the other side, statistics of
// the ring's queries, barriers.
template <int kSlabs, int kGroups>
struct BackwardLayout {
  static constexpr int kStages = kGroups == 1 ? 3 : kSlabs == 1 ? 5 : 4;
  static constexpr uint32_t kTileBytes = kSlabs * kSlabBytes, kStageBytes = 2 * kTileBytes;
  static constexpr uint32_t kRing = kGroups * 2 * kTileBytes, kStatistics = kRing + kStages * kStageBytes;
  static constexpr uint32_t kBarriers = kStatistics + kStages * kStatisticsBytes, kBytes = kBarriers + 16 * kStages + 8 + 1024;
};

// Computes the statistics of all queries and clears the turns and the ticket of the one-pass backward. kLanes lanes process one query.
template <int kLanes>
__global__ void __launch_bounds__(256)
    prepare(const __grid_constant__ CausalAttentionBackward b, const Statistics statistics, const Scratch scratch) {
  const CausalAttention& p = b.forward;
  let_next_kernel_start();
  if (scratch.ticket != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scratch.ticket = 0;
  WorkItem item;
  if (!find_part<kTile, false>(p, blockIdx.x, item)) return;
  const int lane = threadIdx.x % kLanes, queries = item.queries - item.part * kTile;
  const int pairs = 256 / kLanes;  // (query, head) pairs that a block processes together
#pragma unroll 4
  for (int i = static_cast<int>(blockIdx.y) * pairs + threadIdx.x / kLanes; i < kTile * p.heads; i += pairs * static_cast<int>(gridDim.y)) {
    const int query = i / p.heads, head = i - query * p.heads;
    const int64_t query_head = (item.q_begin + item.part * kTile) * p.heads + i;
    float sum = 0;
    if (query < queries && lane * 8 < p.head_dim) {
      const uint4 y = __ldg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(p.y) + query_head * p.head_dim) + lane);
      const uint4 dy = __ldg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(b.grad_y) + query_head * p.head_dim) + lane);
      const uint32_t a[4] = {y.x, y.y, y.z, y.w}, c[4] = {dy.x, dy.y, dy.z, dy.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fmaf(low_float(a[j]), low_float(c[j]), fmaf(high_float(a[j]), high_float(c[j]), sum));
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (lane == 0) {
      if (scratch.turn != nullptr && query == 0) {
        scratch.turn[statistics.tile_index(head, item, item.part)] = 0;
      }
      statistics.data[head * statistics.padded + int64_t{blockIdx.x} * kTile + query] =
          query < queries ? make_float2(p.log_sum_exp[query_head] * kLog2e, sum) : make_float2(INFINITY, 0);
    }
  }
}

#if BASED_HAS_WGMMA
// If kOwnsKeys, the block owns keys and values and loops over q and dy; else it owns q and dy and loops over keys and values.
template <bool kKeys, int kSlabCount, int kGroupCount>
struct BackwardBlock {
  static constexpr bool kOwnsKeys = kKeys;
  static constexpr int kSlabs = kSlabCount, kGroups = kGroupCount, kThreads = kGroups * kGroup, kOwned = kGroups * kTile;
  static constexpr bool kInRegisters = kOwnsKeys && kSlabs == 1;  // whether the owned tiles are A operands in registers
  using Layout = BackwardLayout<kSlabs, kGroups>;
  const CausalAttention& p;
  const Maps& maps;
  const WorkItem& item;
  const Statistics& statistics;
  int group, first, window, heads_per_kv;  // `first`: the warpgroup's first token
  TileRange own, all;                      // tiles that this warpgroup needs; tiles that any warpgroup needs
  int load_head, load_head_step;           // the head whose tiles are being loaded, and the step at which its tiles begin
  Pipeline<Layout::kStages> pipeline;

  __device__ __forceinline__ BackwardBlock(const CausalAttention& params, const Maps& tensor_maps, const WorkItem& work_item,
                                           const Statistics& query_statistics)
      : p(params), maps(tensor_maps), item(work_item), statistics(query_statistics), pipeline(shared_base() + Layout::kBarriers) {
    group = kGroups == 1 ? 0 : warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    first = item.part * kOwned + group * kTile, window = effective_window(params), heads_per_kv = item.heads_per_kv;
    own = tiles(first), all = own;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) all = cover(all, tiles(item.part * kOwned + i * kTile));
    own = warp_uniform(own), all = warp_uniform(all), load_head_step = 0,
    load_head = kOwnsKeys ? item.head * heads_per_kv : item.head / heads_per_kv;
  }
  __device__ __forceinline__ TileRange tiles(int token) const {
    return kOwnsKeys ? tiles_of_queries(item, token, window) : tiles_of_keys(item, token, window);
  }
  __device__ __forceinline__ int count() const { return max(all.last - all.first + 1, 0); }
  __device__ __forceinline__ int rows() const { return min((kOwnsKeys ? item.keys : item.queries) - first, kTile); }
  // Shared addresses of keys (operand 0) and values (1), or of q (0) and dy (1): the owned tiles, and the tiles of a stage.
  __device__ __forceinline__ uint32_t own_tile(int operand) const { return shared_base() + (group * 2 + operand) * Layout::kTileBytes; }
  __device__ __forceinline__ uint32_t tile(const Stage& s, int operand) const {
    return shared_base() + Layout::kRing + (2 * s.slot + operand) * Layout::kTileBytes;
  }
  __device__ __forceinline__ uint32_t statistics_at(const Stage& s) const {
    return shared_base() + Layout::kStatistics + s.slot * kStatisticsBytes;
  }
  __device__ __forceinline__ static uint32_t owned_full() { return shared_base() + Layout::kBarriers + 16 * Layout::kStages; }

  // Called by one thread: loads the tiles of a step.
  __device__ __forceinline__ void load_step(int step, const Stage& s) {
    for (; step - load_head_step >= count(); load_head_step += count()) ++load_head;
    const int index = all.first + step - load_head_step;
    const int64_t token = (kOwnsKeys ? item.q_begin : item.k_begin) + index * kTile;
    const uint32_t barrier = pipeline.full(s);
    barrier_expect(barrier, Layout::kStageBytes + (kOwnsKeys ? kStatisticsBytes : 0));
    load_tile<kSlabs>(tile(s, 0), kOwnsKeys ? maps.q : maps.k, load_head, token, barrier);
    load_tile<kSlabs>(tile(s, 1), kOwnsKeys ? maps.dy : maps.v, load_head, token, barrier);
    if constexpr (kOwnsKeys) bulk_load(statistics_at(s), statistics.tile_data(load_head, item, index), kStatisticsBytes, barrier);
  }
  // Called by one thread, before the block's work item is known.
  __device__ __forceinline__ static void init_barriers() {
    barrier_init(owned_full());
    Pipeline<Layout::kStages>::init(shared_base() + Layout::kBarriers, kThreads / 32);
    fence_shared_proxy();
  }
  __device__ __forceinline__ void start() {
    if (threadIdx.x == kThreads - 32) {
      barrier_expect(owned_full(), kGroups * 2 * Layout::kTileBytes);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int64_t token = (kOwnsKeys ? item.k_begin : item.q_begin) + item.part * kOwned + i * kTile;
        const uint32_t shared = shared_base() + i * 2 * Layout::kTileBytes;
        load_tile<kSlabs>(shared, kOwnsKeys ? maps.k : maps.q, item.head, token, owned_full());
        load_tile<kSlabs>(shared + Layout::kTileBytes, kOwnsKeys ? maps.v : maps.dy, item.head, token, owned_full());
      }
    }
    // The statistics are the first data that this kernel reads from the previous kernel. The next kernel reads them too, so it may start
    // only after this wait.
    if constexpr (kOwnsKeys) wait_for_earlier_kernels(), let_next_kernel_start();
    pipeline.start(count() * (kOwnsKeys ? heads_per_kv : 1), [&](int step, const Stage& s) { load_step(step, s); });
    barrier_wait(owned_full(), 0);
  }
  __device__ __forceinline__ void refill() {
    pipeline.refill([&](int step, const Stage& s) { load_step(step, s); });
  }
  // Waits for tile `index` of the other side and clears its rows past the end of the row.
  __device__ __forceinline__ void wait(int index) const {
    pipeline.wait();
    if (const int rows = (kOwnsKeys ? item.queries : item.keys) - index * kTile; rows < kTile) {
      clear_rows<kSlabs>(tile(pipeline.stage, 0), rows), clear_rows<kSlabs>(tile(pipeline.stage, 1), rows), rows_are_cleared(group);
    }
  }
  // Passes over tiles that only the other warpgroup needs.
  __device__ __forceinline__ void skip(int tiles) {
    for (; tiles > 0; --tiles, pipeline.advance()) refill(), pipeline.wait(), pipeline.release(pipeline.stage);
  }
};

// {log_sum_exp, D} of a tile's queries, where queries are the rows of the scores.
struct RowStatistics {
  float2 low, high;
  __device__ __forceinline__ void load(int, float (&log_sum_exp)[4], float (&d)[4]) const {
    log_sum_exp[0] = log_sum_exp[1] = low.x, log_sum_exp[2] = log_sum_exp[3] = high.x;
    d[0] = d[1] = low.y, d[2] = d[3] = high.y;
  }
};

// Gradients of 64 tokens: x is dk and v is dv if the block owns keys; else x is dq.
template <typename B>
struct Gradients {
  float x[B::kSlabs][32] = {}, v[B::kOwnsKeys ? B::kSlabs : 1][32] = {};

  __device__ __forceinline__ void fence_both() {
    accumulator_fence_all(x);
    if constexpr (B::kOwnsKeys) accumulator_fence_all(v);
  }
};

// The owned tiles as operands: in registers, which leaves the shared-memory bandwidth to the other operands, or as shared addresses.
template <typename B>
struct Owned {
  std::conditional_t<B::kInRegisters, uint32_t[4 * B::kSlabs][4], uint32_t> x, v;

  __device__ __forceinline__ explicit Owned(const B& block) {
    if constexpr (B::kInRegisters) {
      load_tokens<B::kSlabs>(x, block.own_tile(0)), load_tokens<B::kSlabs>(v, block.own_tile(1));
    } else {
      x = block.own_tile(0), v = block.own_tile(1);
    }
  }
};

// start_scores() issues the products for scores and dy·v of a stage, as two wgmma groups. start_gradients() issues the products that add a
// tile to the gradients, as one group.
template <typename B>
__device__ __forceinline__ void start_scores(const B& block, const Owned<B>& owned, Pairs& pairs, const Stage& stage) {
  multiply_tokens<B::kSlabs>(pairs.s, owned.x, block.tile(stage, 0));
  wgmma_commit();
  multiply_tokens<B::kSlabs>(pairs.ds, owned.v, block.tile(stage, 1));
  wgmma_commit();
}
template <typename B>
__device__ __forceinline__ void start_gradients(const B& block, Gradients<B>& sum, const Pairs& pairs, const Stage& stage) {
  if constexpr (B::kOwnsKeys) add_weighted<B::kSlabs>(sum.v, pairs.p_bf16, block.tile(stage, 1));
  add_weighted<B::kSlabs>(sum.x, pairs.ds_bf16, block.tile(stage, 0));
  wgmma_commit();
}

// Computes P from the scores of a tile.
template <typename B, typename Statistics>
__device__ __forceinline__ void compute_weights(const B& block, int tile, Pairs& pairs, const Statistics& statistics) {
  const int distance = block.first + (B::kOwnsKeys ? -block.item.shift() : block.item.shift()) - tile * kTile, reach = block.window - 1;
  mask(pairs.s, B::kOwnsKeys ? distance : distance - reach, B::kOwnsKeys ? distance + reach : distance);
  pairs.compute_weights(block.p.scale * kLog2e, statistics);
}

// Loops over the warpgroup's tiles. While the weights of one tile are computed, its product dy·v and the gradient products of the previous
// tile run. `stage_statistics` returns the statistics of a stage.
template <typename B, typename StageStatistics>
__device__ __forceinline__ void add_tiles(B& block, Gradients<B>& sum, const StageStatistics& stage_statistics) {
  const Owned<B> owned(block);
  Pairs pairs;
  block.skip(block.own.first - block.all.first);
  block.wait(block.own.first);
  Stage before = block.pipeline.stage;
  wgmma_begin();
  start_scores(block, owned, pairs, before);
  block.refill();
  wgmma_wait<1>();
  accumulator_fence(pairs.s);
  compute_weights(block, block.own.first, pairs, stage_statistics(before));
  wgmma_wait<0>();
  accumulator_fence(pairs.ds);
  pairs.compute_ds(stage_statistics(before));
  block.pipeline.advance();
  if (block.own.first < block.own.last) block.wait(block.own.first + 1);
  for (int tile = block.own.first + 1; tile <= block.own.last; ++tile) {
    const Stage now = block.pipeline.stage;
    wgmma_begin();
    start_scores(block, owned, pairs, now);
    start_gradients(block, sum, pairs, warp_uniform(before));
    block.refill();
    wgmma_wait<2>();
    accumulator_fence(pairs.s);
    compute_weights(block, tile, pairs, stage_statistics(now));
    accumulator_fence(pairs.s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    block.pipeline.advance();
    if (tile < block.own.last) block.wait(tile + 1);
    wgmma_wait<0>();
    accumulator_fence(pairs.s), accumulator_fence(pairs.ds), sum.fence_both();
    block.pipeline.release(before);
    pairs.compute_ds(stage_statistics(now));
    before = now;
  }
  wgmma_begin();
  start_gradients(block, sum, pairs, before);
  wgmma_wait<0>();
  sum.fence_both();
  block.pipeline.release(before);
  block.skip(block.all.last - block.own.last);
}

// Stores accumulators to the gradient of this block's head and the warpgroup's tokens, through an owned tile in shared memory.
template <typename B>
__device__ __forceinline__ void write(const B& block, void* gradient, int64_t stride, int operand, float scale,
                                      const float (&d)[B::kSlabs][32]) {
  const int64_t token = (B::kOwnsKeys ? block.item.k_begin : block.item.q_begin) + block.first;
  store_tile<B::kSlabs>(static_cast<bf16*>(gradient) + token * stride + block.item.head * block.p.head_dim, stride, block.p.head_dim,
                        block.rows(), block.own_tile(operand), d, make_float2(scale, scale));
}
#endif

// Resident blocks per multiprocessor, limited by registers.
constexpr int resident_blocks(bool owns_keys, int groups) { return groups > 1 ? 1 : owns_keys ? 2 : 3; }

template <int kSlabs, int kGroups>
__global__ void __launch_bounds__(kGroups* kGroup, resident_blocks(true, kGroups))
    gradients_of_keys(const __grid_constant__ CausalAttentionBackward b, const __grid_constant__ Order order,
                      const __grid_constant__ Maps maps, const __grid_constant__ Statistics statistics) {
#if BASED_HAS_WGMMA
  using B = BackwardBlock<true, kSlabs, kGroups>;
  if (threadIdx.x == 0) B::init_barriers();
  WorkItem item;
  if (!find_item<B::kOwned, true>(b.forward, order, item)) return;
  B block(b.forward, maps, item, statistics);
  block.start();
  Gradients<B> sum;
  for (int i = 0; i < block.heads_per_kv; ++i) {
    if (block.own.first <= block.own.last) {
      add_tiles(block, sum, [&](const Stage& stage) { return ColumnStatistics{block.statistics_at(stage)}; });
    } else {
      block.skip(block.count());
    }
  }
  group_barrier(block.group);  // all warps have finished reading the owned tiles; their memory is reused for the gradients
  write(block, b.grad_k, b.grad_k_stride, 0, b.forward.scale, sum.x);
  write(block, b.grad_v, b.grad_v_stride, 1, 1.0F, sum.v);
#else
  __trap();
#endif
}

template <int kSlabs, int kGroups>
__global__ void __launch_bounds__(kGroups* kGroup, resident_blocks(false, kGroups))
    gradients_of_queries(const __grid_constant__ CausalAttentionBackward b, const __grid_constant__ Order order,
                         const __grid_constant__ Maps maps, const __grid_constant__ Statistics statistics) {
#if BASED_HAS_WGMMA
  using B = BackwardBlock<false, kSlabs, kGroups>;
  if (threadIdx.x == 0) B::init_barriers();
  WorkItem item;
  if (!find_item<B::kOwned, false>(b.forward, order, item)) return;
  B block(b.forward, maps, item, statistics);
  block.start();
  if (block.own.first > block.own.last) return block.skip(block.count());
  const float2* rows = statistics.tile_data(item.head, item, block.first / kTile) + 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4;
  const RowStatistics row_statistics{rows[0], rows[8]};
  Gradients<B> sum;
  add_tiles(block, sum, [&](const Stage&) { return row_statistics; });
  group_barrier(block.group);
  wait_for_earlier_kernels();  // so that when this kernel completes, the gradients of the earlier kernels are complete too
  write(block, b.grad_q, b.grad_q_stride, 0, b.forward.scale, sum.x);
#else
  __trap();
#endif
}

Statistics make_statistics(const CausalAttention& p, void* scratch) {
  return {static_cast<float2*>(scratch), (p.q_tokens / kTile + p.rows) * kTile};
}

Status describe(Maps& maps, const CausalAttentionBackward& b) {
  const CausalAttention& p = b.forward;
  if (const Status s = describe_heads(maps.q, p.q, p.q_tokens, p.q_stride, p.heads, p.head_dim, kTile); !s.ok()) return s;
  if (const Status s = describe_heads(maps.k, p.k, p.k_tokens, p.k_stride, p.kv_heads, p.head_dim, kTile); !s.ok()) return s;
  if (const Status s = describe_heads(maps.v, p.v, p.k_tokens, p.v_stride, p.kv_heads, p.head_dim, kTile); !s.ok()) return s;
  return describe_heads(maps.dy, b.grad_y, p.q_tokens, int64_t{p.heads} * p.head_dim, p.heads, p.head_dim, kTile);
}

template <int kSlabs, int kGroups>
Status launch(void (*kernel)(CausalAttentionBackward, Order, Maps, Statistics), const CausalAttentionBackward& b, int heads,
              const Order& order, const Maps& maps, const Statistics& statistics, Queue queue) {
  constexpr int kBytes = BackwardLayout<kSlabs, kGroups>::kBytes;
  if (!fits(order)) return {"causal_attention: too many tokens for one launch"};
  if (const cudaError_t e = allow_shared_memory(kernel, kBytes); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {grid_of(order, heads), kGroups * kGroup, kBytes}, queue, b, order, maps, statistics);
}

template <int kSlabs>
void launch_prepare(const CausalAttentionBackward& b, const Statistics& statistics, const Scratch& scratch, Queue queue) {
  prepare<8 * kSlabs><<<dim3(static_cast<unsigned>(statistics.padded / kTile), 4), 256, 0, stream_of(queue)>>>(b, statistics, scratch);
}

template <int kSlabs, int kGroups>
Status run(const CausalAttentionBackward& b, const Maps& maps, const Statistics& statistics, Queue queue) {
  const CausalAttention& p = b.forward;
  launch_prepare<kSlabs>(b, statistics, {}, queue);
  const Order keys = make_order(p, p.k_tokens, kGroups * kTile, false);
  const Order queries = make_order(p, p.q_tokens, kGroups * kTile, true);
  const Status s = launch<kSlabs, kGroups>(gradients_of_keys<kSlabs, kGroups>, b, p.kv_heads, keys, maps, statistics, queue);
  if (!s.ok()) return s;
  return launch<kSlabs, kGroups>(gradients_of_queries<kSlabs, kGroups>, b, p.heads, queries, maps, statistics, queue);
}

// Whether all gradients are computed in one pass. With few tiles per block, blocks mostly wait for their first tile; then small blocks,
// several per multiprocessor, are faster.
bool uses_one_pass(const CausalAttention& p) {
  constexpr int kShortWindow = 256;
  return p.head_dim <= 64 && (p.window == 0 || p.window > kShortWindow);
}

// Bytes of the parts of the scratch: statistics; in the one-pass backward, the sums of dq; the ticket and the turns.
struct ScratchSizes {
  int64_t statistics, sums, turns;
};
ScratchSizes scratch_sizes(const CausalAttention& p) {
  const int64_t tokens = make_statistics(p, nullptr).padded * p.heads;
  return {tokens * 8, uses_one_pass(p) ? tokens * 64 * 4 : 0, uses_one_pass(p) ? 16 + tokens / kTile * 4 : 0};
}

Status choose(const CausalAttentionBackward& b, void* scratch, Queue queue) {
  const CausalAttention& p = b.forward;
  const Statistics statistics = make_statistics(p, scratch);
  Maps maps;
  if (const Status s = describe(maps, b); !s.ok()) return s;
  if (p.head_dim > 64) return run<2, 2>(b, maps, statistics, queue);
  if (!uses_one_pass(p)) return run<1, 1>(b, maps, statistics, queue);
  const ScratchSizes sizes = scratch_sizes(p);
  char* sums = static_cast<char*>(scratch) + sizes.statistics;
  int* ticket = reinterpret_cast<int*>(sums + sizes.sums);
  const Scratch parts{reinterpret_cast<float4*>(sums), ticket + 4, ticket};
  launch_prepare<1>(b, statistics, parts, queue);
  return backward_one_pass(b, maps, statistics, parts, queue);
}

}  // namespace
}  // namespace based::kernels::cuda::detail::causal

namespace based::kernels::cuda {

int64_t causal_attention_backward_scratch(const CausalAttentionBackward& b) {
  if (b.forward.dtype == DType::f32) return detail::pairs::backward_scratch(detail::causal::pair_problem(b.forward));
  const detail::causal::ScratchSizes sizes = detail::causal::scratch_sizes(b.forward);
  return sizes.statistics + sizes.sums + sizes.turns;
}

Status causal_attention_backward(const CausalAttentionBackward& b, void* scratch, Queue queue) {
  const CausalAttention& p = b.forward;
  if (p.k_tokens == 0 || p.heads == 0) return {};
  if (p.log_sum_exp == nullptr) return {"causal_attention_backward: log_sum_exp must be given"};
  if (p.dtype == DType::f32) return detail::pairs::backward(detail::causal::pair_gradients(b, scratch), queue);
  if ((b.grad_q_stride | b.grad_k_stride | b.grad_v_stride) % 8 != 0 || !aligned16(b.grad_y) || !aligned16(b.grad_q) ||
      !aligned16(b.grad_k) || !aligned16(b.grad_v)) {
    return {"causal_attention_backward: grad_y and the gradients must be aligned to 16 bytes"};
  }
  if (p.q_tokens == 0) {
    const size_t width = size_t{2} * p.kv_heads * p.head_dim;
    const cudaStream_t s = detail::stream_of(queue);
    const cudaError_t e = cudaMemset2DAsync(b.grad_k, size_t{2} * b.grad_k_stride, 0, width, p.k_tokens, s);
    if (e != cudaSuccess) return detail::status_of(e);
    return detail::status_of(cudaMemset2DAsync(b.grad_v, size_t{2} * b.grad_v_stride, 0, width, p.k_tokens, s));
  }
  return detail::causal::choose(b, scratch, queue);
}

}  // namespace based::kernels::cuda
