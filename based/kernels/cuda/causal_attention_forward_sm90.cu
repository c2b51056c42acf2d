// Softmax attention forward on Hopper: bf16, head_dim ≤ 128. A block owns 128 queries of one head, 64 for each of two warpgroups, and walks
// over the tiles of keys and values that they see, the last one first. A warpgroup multiplies the weights of a tile and its values while it
// makes the weights of the next; with head_dim ≤ 64 two blocks share a multiprocessor, so that products of one hide exponentials of the
// other.
#include "based/kernels/cuda/causal_forward_sm90.cuh"
#include "based/kernels/cuda/pair_attention.h"

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
  using Memory = ForwardLayout<kSlabs>;
  const CausalAttention& p;
  const ForwardMaps& maps;
  const Place& at;
  int group, first_query, window, kv_head;
  Tiles own, all;  // tiles of keys that this warpgroup sees, that some warpgroup sees
  Walk<Memory::kStages> walk;

  __device__ __forceinline__ ForwardBlock(const CausalAttention& of, const ForwardMaps& with, const Place& place)
      : p(of), maps(with), at(place), walk(shared_base() + Memory::kBarriers) {
    group = warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    first_query = at.part * kQueries + group * kTile, window = window_of(of), kv_head = at.head / at.share;
    const Tiles first = tiles_of_keys(at, at.part * kQueries, window), second = tiles_of_keys(at, at.part * kQueries + kTile, window);
    own = warp_uniform(tiles_of_keys(at, first_query, window)), all = warp_uniform(either(first, second));
  }
  __device__ __forceinline__ uint32_t queries() const { return shared_base() + group * Memory::kTileBytes; }
  __device__ __forceinline__ uint32_t keys_at(const Stage& s) const { return shared_base() + Memory::kRing + s.slot * Memory::kStageBytes; }
  __device__ __forceinline__ uint32_t values_at(const Stage& s) const { return keys_at(s) + Memory::kTileBytes; }
  __device__ __forceinline__ static uint32_t queries_here() { return shared_base() + Memory::kBarriers + 16 * Memory::kStages; }

  // One thread; `step` counts tiles from the last one down.
  __device__ __forceinline__ void request(int step, const Stage& s) const {
    const int64_t token = at.k_begin + (all.last - step) * kTile;
    barrier_expect(walk.here(s), Memory::kStageBytes);
    load_tile<kSlabs>(keys_at(s), maps.k, kv_head, token, walk.here(s));
    load_tile<kSlabs>(values_at(s), maps.v, kv_head, token, walk.here(s));
  }
  // One thread, before the block's place is known.
  __device__ __forceinline__ static void init_barriers() {
    barrier_init(queries_here());
    Walk<Memory::kStages>::init(shared_base() + Memory::kBarriers, kConsumers / 32);
    fence_shared_proxy();
  }
  __device__ __forceinline__ void start() {
    if (threadIdx.x == kConsumers - 32) {
      barrier_expect(queries_here(), kGroups * Memory::kTileBytes);
#pragma unroll
      for (int i = 0; i < kGroups; ++i)
        load_tile<kSlabs>(shared_base() + i * Memory::kTileBytes, maps.q, at.head, at.q_begin + at.part * kQueries + i * kTile,
                          queries_here());
    }
    walk.start(all.last - all.first + 1, [&](int step, const Stage& s) { request(step, s); });
  }
  __device__ __forceinline__ void refill() {
    walk.refill([&](int step, const Stage& s) { request(step, s); });
  }
  // Tiles that only the other warpgroup sees.
  __device__ __forceinline__ void skip(int tiles) {
    for (; tiles > 0; --tiles, walk.advance()) refill(), walk.wait(), walk.release(walk.stage);
  }
};

// Weights of a tile from its scores.
template <int kSlabs>
__device__ __forceinline__ void weigh(const ForwardBlock<kSlabs>& block, int tile, float (&s)[32], Softmax& softmax, float (&kept)[2]) {
  const int shift = block.first_query + block.at.shift() - tile * kTile;
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
  barrier_wait(block.queries_here(), 0);
  block.walk.wait();
  if (const int keys = block.at.keys - block.own.last * kTile; keys < kTile) {
    clear_rows<kSlabs>(block.values_at(block.walk.stage), keys), rows_are_cleared(block.group);
  }
  wgmma_begin();
  multiply_tokens<kSlabs>(s, block.queries(), block.keys_at(block.walk.stage));
  wgmma_commit();
  wgmma_wait<0>();
  accumulator_fence(s);
  weigh(block, block.own.last, s, softmax, kept);
  pack(w, s);
  Stage before = block.walk.stage;
  block.refill(), block.walk.advance();
  if (block.own.last > block.own.first) block.walk.wait();
  for (int tile = block.own.last - 1; tile >= block.own.first; --tile) {
    const Stage now = block.walk.stage;
    wgmma_begin();
    multiply_tokens<kSlabs>(s, block.queries(), block.keys_at(now));
    wgmma_commit();
    add_weighted<kSlabs>(out, w, block.values_at(warp_uniform(before)));
    wgmma_commit();
    block.refill();
    wgmma_wait<1>();
    accumulator_fence(s);
    weigh(block, tile, s, softmax, kept);
    accumulator_fence(s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    block.walk.advance();
    if (tile > block.own.first) block.walk.wait();
    wgmma_wait<0>();
    accumulator_fence_all(out), accumulator_fence(s);
    block.walk.release(before);
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
  block.walk.release(before);
  block.skip(block.own.first - block.all.first);
  group_barrier(block.group);  // nobody reads the queries any more: outputs go there
  write(block.p, block.at, block.first_query, block.queries(), softmax, out);
}
#endif

template <int kSlabs>
__global__ void __launch_bounds__(kConsumers, kSlabs == 1 ? 2 : 1)
    attend_queries(const __grid_constant__ CausalAttention p, const __grid_constant__ Order order,
                   const __grid_constant__ ForwardMaps maps) {
#if BASED_HAS_WGMMA
  if (threadIdx.x == 0) ForwardBlock<kSlabs>::init_barriers();
  Place place;
  if (!find_place<kQueries, false>(p, order, place)) return;
  ForwardBlock<kSlabs> block(p, maps, place);
  block.start();
  attend(block);
#else
  __trap();
#endif
}

template <int kSlabs>
Status run(const CausalAttention& p, Stream stream) {
  const Order order = make_order(p, p.q_tokens, kQueries, true);
  if (!fits(order)) return {"causal_attention: too many tokens for one launch"};
  ForwardMaps maps;
  if (const Status s = describe(maps, p, kTile); !s.ok()) return s;
  auto* kernel = attend_queries<kSlabs>;
  if (const cudaError_t e = allow_shared_memory(kernel, ForwardLayout<kSlabs>::kBytes); e != cudaSuccess) return status_of(e);
  kernel<<<grid_of(order, p.heads), kConsumers, ForwardLayout<kSlabs>::kBytes, stream_of(stream)>>>(p, order, maps);
  return launched();
}

// Long walks, on average, fill a pipeline of large tiles. With few tiles to walk over, blocks spend their time waiting for the first: small
// ones then, several on a multiprocessor.
bool is_long(const CausalAttention& p) {
  constexpr int64_t kShortWindow = 256, kShortRow = 1024;
  return p.head_dim <= 64 && (p.window == 0 || p.window > kShortWindow) && p.k_tokens >= kShortRow * p.rows;
}

}  // namespace
}  // namespace based::kernels::cuda::detail::causal

namespace based::kernels::cuda {

bool causal_attention_supports(const CausalAttention& p) {
  if (p.dtype == DType::f32) return detail::pairs::supports(detail::pairs::problem_of(p));
  return runs_hopper_code() && p.dropout.threshold == 0 && p.dtype == DType::bf16 && p.head_dim >= 8 && p.head_dim <= 128 &&
         p.head_dim % 8 == 0 && p.kv_heads > 0 && p.heads % p.kv_heads == 0 && p.scale > 0 && p.q_stride % 8 == 0 && p.k_stride % 8 == 0 &&
         p.v_stride % 8 == 0 && p.q_tokens <= detail::causal::kMostTokens && p.k_tokens <= detail::causal::kMostTokens && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v) && aligned16(p.y);
}

int64_t causal_attention_scratch(const CausalAttention& p) { return p.dtype == DType::bf16 && detail::causal::is_long(p) ? 16 : 0; }

Status causal_attention_forward(const CausalAttention& p, void* scratch, Stream stream) {
  if (p.q_tokens == 0 || p.heads == 0) return {};
  if (p.dtype == DType::f32) return detail::pairs::forward(detail::pairs::problem_of(p), stream);
  if (detail::causal::is_long(p)) return detail::causal::attend_long(p, static_cast<int*>(scratch), stream);
  return p.head_dim <= 64 ? detail::causal::run<1>(p, stream) : detail::causal::run<2>(p, stream);
}

}  // namespace based::kernels::cuda
