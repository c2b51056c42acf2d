// Softmax attention forward on Hopper: bf16, head_dim ≤ 128. A block owns 128 queries of one head, 64 for each of two warpgroups, and loops
// over the tiles of keys and values that they attend to, from the last tile to the first. While a warpgroup computes the weights of a tile,
// the product of weights and values of the previous tile runs. With head_dim ≤ 64 two blocks share a multiprocessor, so the products of one
// block overlap the exponentials of the other.
#include "based/kernels/attention/cuda/causal_forward_sm90.cuh"
#include "based/kernels/attention/cuda/causal_pairs.h"

namespace based::kernels::cuda::detail::causal {
namespace {

constexpr int kGroups = 2, kConsumers = kGroups * kGroup, kQueries = kGroups * kTile;

// Shared memory: queries, the ring of keys and values, barriers.
template <int kSlabs>
struct ForwardLayout {
  static constexpr int kStages = kSlabs == 1 ? 5 : 4;
  static constexpr uint32_t kTileBytes = kSlabs * kSlabBytes, kStageBytes = 2 * kTileBytes;
  static constexpr uint32_t kRing = kGroups * kTileBytes, kBarriers = kRing + kStages * kStageBytes;
  static constexpr uint32_t kBytes = kBarriers + 16 * kStages + 8 + 1024;
};

#if BASED_HAS_WGMMA
template <int kSlabs>
struct ForwardBlock {
  using Layout = ForwardLayout<kSlabs>;
  const CausalAttention& p;
  const ForwardMaps& maps;
  const WorkItem& item;
  int group, first_query, window, kv_head;
  TileRange own, all;  // tiles of keys that this warpgroup needs; tiles that any warpgroup needs
  Pipeline<Layout::kStages> pipeline;

  __device__ __forceinline__ ForwardBlock(const CausalAttention& params, const ForwardMaps& tensor_maps, const WorkItem& work_item)
      : p(params), maps(tensor_maps), item(work_item), pipeline(shared_base() + Layout::kBarriers) {
    group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    first_query = item.part * kQueries + group * kTile, window = effective_window(params), kv_head = item.head / item.heads_per_kv;
    const TileRange first = tiles_of_keys(item, item.part * kQueries, window),
                    second = tiles_of_keys(item, item.part * kQueries + kTile, window);
    own = warp_uniform(tiles_of_keys(item, first_query, window)), all = warp_uniform(cover(first, second));
  }
  __device__ __forceinline__ uint32_t queries() const { return shared_base() + group * Layout::kTileBytes; }
  __device__ __forceinline__ uint32_t keys_at(const Stage& s) const { return shared_base() + Layout::kRing + s.slot * Layout::kStageBytes; }
  __device__ __forceinline__ uint32_t values_at(const Stage& s) const { return keys_at(s) + Layout::kTileBytes; }
  __device__ __forceinline__ static uint32_t queries_full() { return shared_base() + Layout::kBarriers + 16 * Layout::kStages; }

  // Called by one thread. Step 0 is the last tile.
  __device__ __forceinline__ void load_step(int step, const Stage& s) const {
    const int64_t token = item.k_begin + (all.last - step) * kTile;
    barrier_expect(pipeline.full(s), Layout::kStageBytes);
    load_tile<kSlabs>(keys_at(s), maps.k, kv_head, token, pipeline.full(s));
    load_tile<kSlabs>(values_at(s), maps.v, kv_head, token, pipeline.full(s));
  }
  // Called by one thread, before the block's work item is known.
  __device__ __forceinline__ static void init_barriers() {
    barrier_init(queries_full());
    Pipeline<Layout::kStages>::init(shared_base() + Layout::kBarriers, kConsumers / 32);
    fence_shared_proxy();
  }
  __device__ __forceinline__ void start() {
    if (threadIdx.x == kConsumers - 32) {
      barrier_expect(queries_full(), kGroups * Layout::kTileBytes);
#pragma unroll
      for (int i = 0; i < kGroups; ++i)
        load_tile<kSlabs>(shared_base() + i * Layout::kTileBytes, maps.q, item.head, item.q_begin + item.part * kQueries + i * kTile,
                          queries_full());
    }
    pipeline.start(all.last - all.first + 1, [&](int step, const Stage& s) { load_step(step, s); });
  }
  __device__ __forceinline__ void refill() {
    pipeline.refill([&](int step, const Stage& s) { load_step(step, s); });
  }
  // Passes over tiles that only the other warpgroup needs.
  __device__ __forceinline__ void skip(int tiles) {
    for (; tiles > 0; --tiles, pipeline.advance()) refill(), pipeline.wait(), pipeline.release(pipeline.stage);
  }
};

// Computes the weights of a tile from its scores.
template <int kSlabs>
__device__ __forceinline__ void compute_weights(const ForwardBlock<kSlabs>& block, int tile, float (&s)[32], Softmax& softmax,
                                                float (&kept)[2]) {
  const int shift = block.first_query + block.item.shift() - tile * kTile;
  mask(s, shift - block.window + 1, shift);
  softmax.update(s, block.p.scale * kLog2e, kept);
}

template <int kSlabs>
__device__ __forceinline__ void attend(ForwardBlock<kSlabs>& block) {
  if (block.own.last < block.own.first) return block.skip(block.all.last - block.all.first + 1);
  block.skip(block.all.last - block.own.last);
  Softmax softmax;
  float out[kSlabs][32] = {}, s[32], kept[2];
  uint32_t w[16];
  barrier_wait(block.queries_full(), 0);
  block.pipeline.wait();
  if (const int keys = block.item.keys - block.own.last * kTile; keys < kTile) {
    clear_rows<kSlabs>(block.values_at(block.pipeline.stage), keys), rows_are_cleared(block.group);
  }
  wgmma_begin();
  multiply_tokens<kSlabs>(s, block.queries(), block.keys_at(block.pipeline.stage));
  wgmma_commit();
  wgmma_wait<0>();
  accumulator_fence(s);
  compute_weights(block, block.own.last, s, softmax, kept);
  pack(w, s);
  Stage before = block.pipeline.stage;
  block.refill(), block.pipeline.advance();
  if (block.own.last > block.own.first) block.pipeline.wait();
  for (int tile = block.own.last - 1; tile >= block.own.first; --tile) {
    const Stage now = block.pipeline.stage;
    wgmma_begin();
    multiply_tokens<kSlabs>(s, block.queries(), block.keys_at(now));
    wgmma_commit();
    add_weighted<kSlabs>(out, w, block.values_at(warp_uniform(before)));
    wgmma_commit();
    block.refill();
    wgmma_wait<1>();
    accumulator_fence(s);
    compute_weights(block, tile, s, softmax, kept);
    accumulator_fence(s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    block.pipeline.advance();
    if (tile > block.own.first) block.pipeline.wait();
    wgmma_wait<0>();
    accumulator_fence_all(out), accumulator_fence(s);
    block.pipeline.release(before);
    if (__any_sync(~0U, kept[0] != 1.0F || kept[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 32 * kSlabs; ++i) out[i / 32][i % 32] *= kept[i / 2 % 2];
    }
    pack(w, s);
    before = now;
  }
  wgmma_begin();
  add_weighted<kSlabs>(out, w, block.values_at(before));
  wgmma_commit();
  softmax.finish();
  wgmma_wait<0>();
  accumulator_fence_all(out);
  block.pipeline.release(before);
  block.skip(block.own.first - block.all.first);
  group_barrier(block.group);  // all warps have finished reading the queries; their memory is reused for the outputs
  write(block.p, block.item, block.first_query, block.queries(), softmax, out);
}
#endif

template <int kSlabs>
__global__ void __launch_bounds__(kConsumers, kSlabs == 1 ? 2 : 1)
    attend_queries(const __grid_constant__ CausalAttention p, const __grid_constant__ Order order,
                   const __grid_constant__ ForwardMaps maps) {
#if BASED_HAS_WGMMA
  if (threadIdx.x == 0) ForwardBlock<kSlabs>::init_barriers();
  WorkItem item;
  if (!find_item<kQueries, false>(p, order, item)) return;
  ForwardBlock<kSlabs> block(p, maps, item);
  block.start();
  attend(block);
#else
  __trap();
#endif
}

template <int kSlabs>
Status run(const CausalAttention& p, Queue queue) {
  const Order order = make_order(p, p.q_tokens, kQueries, true);
  if (!fits(order)) return {"causal_attention: too many tokens for one launch"};
  ForwardMaps maps;
  if (const Status s = describe(maps, p, kTile); !s.ok()) return s;
  auto* kernel = attend_queries<kSlabs>;
  if (const cudaError_t e = allow_shared_memory(kernel, ForwardLayout<kSlabs>::kBytes); e != cudaSuccess) return status_of(e);
  kernel<<<grid_of(order, p.heads), kConsumers, ForwardLayout<kSlabs>::kBytes, stream_of(queue)>>>(p, order, maps);
  return launched();
}

// Whether loops are long enough, on average, to fill a pipeline of large tiles. With few tiles per block, blocks mostly wait for their
// first tile; then small blocks, several per multiprocessor, are faster.
bool is_long(const CausalAttention& p) {
  constexpr int64_t kShortWindow = 256, kShortRow = 1024;
  return p.head_dim <= 64 && (p.window == 0 || p.window > kShortWindow) && p.k_tokens >= kShortRow * p.rows;
}

}  // namespace
}  // namespace based::kernels::cuda::detail::causal

namespace based::kernels::cuda {

bool causal_attention_supports(const CausalAttention& p) {
  if (p.dtype == DType::f32) return detail::pairs::supports(detail::causal::pair_problem(p));
  return runs_hopper_code() && p.dropout.threshold == 0 && p.dtype == DType::bf16 && p.head_dim >= 8 && p.head_dim <= 128 &&
         p.head_dim % 8 == 0 && p.kv_heads > 0 && p.heads % p.kv_heads == 0 && p.scale > 0 && p.q_stride % 8 == 0 && p.k_stride % 8 == 0 &&
         p.v_stride % 8 == 0 && p.q_tokens <= detail::causal::kMaxTokens && p.k_tokens <= detail::causal::kMaxTokens && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v) && aligned16(p.y);
}

int64_t causal_attention_scratch(const CausalAttention& p) { return p.dtype == DType::bf16 && detail::causal::is_long(p) ? 16 : 0; }

Status causal_attention_forward(const CausalAttention& p, void* scratch, Queue queue) {
  if (p.q_tokens == 0 || p.heads == 0) return {};
  if (p.dtype == DType::f32) return detail::pairs::forward(detail::causal::pair_problem(p), queue);
  if (detail::causal::is_long(p)) return detail::causal::attend_long(p, static_cast<int*>(scratch), queue);
  return p.head_dim <= 64 ? detail::causal::run<1>(p, queue) : detail::causal::run<2>(p, queue);
}

}  // namespace based::kernels::cuda
