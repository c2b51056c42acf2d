// Softmax attention forward on Hopper: bf16, head_dim ≤ 128. A block owns 128 queries of one head, 64 for each of two warpgroups, and walks
// over the tiles of keys and values that they see, the last one first. A warpgroup multiplies the weights of a tile and its values while it
// makes the weights of the next; with head_dim ≤ 64 two blocks share a multiprocessor, so that products of one hide exponentials of the
// other.
#include <cmath>

#include "based/kernels/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {
namespace {

constexpr int kGroups = 2, kConsumers = kGroups * kGroup, kQueries = kGroups * kTile;

// Shared memory: queries, the ring of keys and values, barriers.
template <int kSlabs>
struct Layout {
  static constexpr int kStages = kSlabs == 1 ? 5 : 4;
  static constexpr uint32_t kTileBytes = kSlabs * kSlabBytes, kStageBytes = 2 * kTileBytes;
  static constexpr uint32_t kRing = kGroups * kTileBytes, kBarriers = kRing + kStages * kStageBytes;
  static constexpr uint32_t kBytes = kBarriers + 16 * kStages + 8 + 1024;
};

struct Maps {
  CUtensorMap q, k, v;
};

#if BASED_HAS_WGMMA
template <int kSlabs>
struct Block {
  using Memory = Layout<kSlabs>;
  const CausalAttention& p;
  const Maps& maps;
  const Place& at;
  int group, first_query, window, kv_head;
  Tiles own, all;  // tiles of keys that this warpgroup sees, that some warpgroup sees
  Walk<Memory::kStages> walk;

  __device__ __forceinline__ Block(const CausalAttention& of, const Maps& with, const Place& place)
      : p(of), maps(with), at(place), walk(shared_base() + Memory::kBarriers) {
    group = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kGroup, 0);
    first_query = at.part * kQueries + group * kTile, window = window_of(of), kv_head = at.head / at.share;
    const Tiles first = tiles_of_keys(at, at.part * kQueries, window), second = tiles_of_keys(at, at.part * kQueries + kTile, window);
    own = agreed(tiles_of_keys(at, first_query, window)), all = agreed(either(first, second));
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

// The running softmax of a thread's two rows; sums are the thread's own columns' until the end. Weights are relative to `top`, which
// follows a row's maximum only when that has grown by kSlack powers of two: then most tiles leave the sums so far as they are.
struct Softmax {
  static constexpr float kSlack = 8;
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Scores become weights; `kept` is what the weighted sums so far are to be multiplied by.
  __device__ __forceinline__ void update(float (&s)[32], float scale, float (&kept)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < 8; ++j) most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
      most *= scale;
      const bool grown = most > top[r] + kSlack;
      kept[r] = grown ? exp2_approx(top[r] - most) : 1.0F;
      top[r] = grown ? most : top[r];
      const float base = top[r] == -INFINITY ? 0.0F : top[r];
      float total = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float &a = s[4 * j + 2 * r], &b = s[4 * j + 2 * r + 1];
        a = exp2_approx(fmaf(a, scale, -base)), b = exp2_approx(fmaf(b, scale, -base));
        total += a + b;
      }
      sum[r] = fmaf(sum[r], kept[r], total);
    }
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    }
  }
};

// Weights of a tile from its scores.
template <int kSlabs>
__device__ __forceinline__ void weigh(const Block<kSlabs>& block, int tile, float (&s)[32], Softmax& softmax, float (&kept)[2]) {
  const int shift = block.first_query + block.at.shift() - tile * kTile;
  mask(s, shift - block.window + 1, shift);
  softmax.update(s, block.p.scale * kLog2e, kept);
}

template <int kSlabs>
__device__ __forceinline__ void write(const Block<kSlabs>& block, const Softmax& softmax, const float (&out)[kSlabs][32]) {
  const CausalAttention& p = block.p;
  const int row = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4, rows = min(block.at.queries - block.first_query, kTile);
  const int64_t head = (block.at.q_begin + block.first_query) * p.heads + block.at.head;
  if (p.log_sum_exp != nullptr && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r < rows) p.log_sum_exp[head + (row + 8 * r) * p.heads] = fmaf(softmax.top[r], kLn2, __logf(softmax.sum[r]));
    }
  }
  group_meets(block.group);  // nobody reads the queries any more: outputs go there
  store_tile<kSlabs>(static_cast<bf16*>(p.y) + head * p.head_dim, int64_t{p.heads} * p.head_dim, p.head_dim, rows, block.queries(), out,
                     make_float2(1 / softmax.sum[0], 1 / softmax.sum[1]));
}

template <int kSlabs>
__device__ __forceinline__ void attend(Block<kSlabs>& block) {
  if (block.own.last < block.own.first) return block.skip(block.all.last - block.all.first + 1);
  block.skip(block.all.last - block.own.last);
  Softmax softmax;
  float out[kSlabs][32] = {}, s[32], kept[2];
  uint32_t w[16];
  barrier_wait(block.queries_here(), 0);
  block.walk.wait();
  wgmma_begin();
  multiply_tokens<kSlabs>(s, block.queries(), block.keys_at(block.walk.stage));
  wgmma_commit();
  wgmma_wait<0>();
  settle(s);
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
    add_weighted<kSlabs>(out, w, block.values_at(agreed(before)));
    wgmma_commit();
    block.refill();
    wgmma_wait<1>();
    settle(s);
    weigh(block, tile, s, softmax, kept);
    settle(s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    block.walk.advance();
    if (tile > block.own.first) block.walk.wait();
    wgmma_wait<0>();
    settle_all(out), settle(s);
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
  settle_all(out);
  block.walk.release(before);
  block.skip(block.own.first - block.all.first);
  write(block, softmax, out);
}
#endif

template <int kSlabs>
__global__ void __launch_bounds__(kConsumers, kSlabs == 1 ? 2 : 1)
    attend_queries(const __grid_constant__ CausalAttention p, const __grid_constant__ Order order, const __grid_constant__ Maps maps) {
#if BASED_HAS_WGMMA
  if (threadIdx.x == 0) Block<kSlabs>::init_barriers();
  Place place;
  if (!find_place<kQueries, false>(p, order, place)) return;
  Block<kSlabs> block(p, maps, place);
  block.start();
  attend(block);
#endif
}

template <int kSlabs>
Status run(const CausalAttention& p, Stream stream) {
  const Order order = make_order(p, p.q_tokens, kQueries, true);
  if (!fits(order)) return {"causal_attention: too many tokens for one launch"};
  Maps maps;
  if (const Status s = describe_heads(maps.q, p.q, p.q_tokens, p.q_stride, p.heads, p.head_dim, kTile); !s.ok()) return s;
  if (const Status s = describe_heads(maps.k, p.k, p.k_tokens, p.k_stride, p.kv_heads, p.head_dim, kTile); !s.ok()) return s;
  if (const Status s = describe_heads(maps.v, p.v, p.k_tokens, p.v_stride, p.kv_heads, p.head_dim, kTile); !s.ok()) return s;
  auto* kernel = attend_queries<kSlabs>;
  if (const cudaError_t e = allow_shared_memory(kernel, Layout<kSlabs>::kBytes); e != cudaSuccess) return status_of(e);
  kernel<<<grid_of(order, p.heads), kConsumers, Layout<kSlabs>::kBytes, stream_of(stream)>>>(p, order, maps);
  return launched();
}

}  // namespace
}  // namespace based::kernels::cuda::detail::causal

namespace based::kernels::cuda {

bool causal_attention_supports(const CausalAttention& p) {
  return detail::is_hopper() && p.dtype == DType::bf16 && p.head_dim >= 8 && p.head_dim <= 128 && p.head_dim % 8 == 0 && p.kv_heads > 0 &&
         p.heads % p.kv_heads == 0 && p.scale > 0 && p.q_stride % 8 == 0 && p.k_stride % 8 == 0 && p.v_stride % 8 == 0 &&
         p.q_tokens <= detail::causal::kMostTokens && p.k_tokens <= detail::causal::kMostTokens && detail::aligned16(p.q) &&
         detail::aligned16(p.k) && detail::aligned16(p.v) && detail::aligned16(p.y);
}

Status causal_attention_forward(const CausalAttention& p, Stream stream) {
  if (p.q_tokens == 0 || p.heads == 0) return {};
  return p.head_dim <= 64 ? detail::causal::run<1>(p, stream) : detail::causal::run<2>(p, stream);
}

}  // namespace based::kernels::cuda
