// Softmax attention backward on Hopper: bf16, head_dim ≤ 128. With P = exp(scale·S − log_sum_exp) and D_i = Σ_d dy_id y_id:
//   dS = P ∘ (dy vᵀ − D),  dv = Pᵀ dy,  dk = scale·dSᵀ q,  dq = scale·dS k
// Long walks with head_dim ≤ 64 go to causal_attention_backward_once_sm90.cu. Here the scores are made twice: by blocks that own keys of a
// head and walk over the queries that see them (dk, dv), and by blocks that own queries and walk over their keys (dq). So every sum is one
// warpgroup's, in one order, at the price of seven products instead of five.
#include <cmath>
#include <type_traits>

#include "based/kernels/cuda/causal_backward_sm90.cuh"
#include "based/kernels/cuda/pair_attention.h"

namespace based::kernels::cuda::detail::causal {
namespace {

// Shared memory of a block of `groups` warpgroups: the owned tiles (two for each warpgroup), the ring of the others' tiles, statistics of
// the ring's queries, barriers.
template <int kSlabs, int kGroups>
struct BackwardLayout {
  static constexpr int kStages = kGroups == 1 ? 3 : kSlabs == 1 ? 5 : 4;
  static constexpr uint32_t kTileBytes = kSlabs * kSlabBytes, kStageBytes = 2 * kTileBytes;
  static constexpr uint32_t kRing = kGroups * 2 * kTileBytes, kStatistics = kRing + kStages * kStageBytes;
  static constexpr uint32_t kBarriers = kStatistics + kStages * kStatisticsBytes, kBytes = kBarriers + 16 * kStages + 8 + 1024;
};

template <int kLanes>
__global__ void __launch_bounds__(256)
    prepare(const __grid_constant__ CausalAttentionBackward b, const Statistics statistics, const Scratch scratch) {
  const CausalAttention& p = b.forward;
  let_next_kernel_start();
  if (scratch.ticket != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scratch.ticket = 0;
  Place place;
  if (!find_part<kTile, false>(p, blockIdx.x, place)) return;
  const int lane = threadIdx.x % kLanes, queries = place.queries - place.part * kTile;
  const int pairs = 256 / kLanes;  // at once
#pragma unroll 4
  for (int i = static_cast<int>(blockIdx.y) * pairs + threadIdx.x / kLanes; i < kTile * p.heads; i += pairs * static_cast<int>(gridDim.y)) {
    const int query = i / p.heads, head = i - query * p.heads;
    const int64_t at = (place.q_begin + place.part * kTile) * p.heads + i;
    float sum = 0;
    if (query < queries && lane * 8 < p.head_dim) {
      const uint4 y = __ldg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(p.y) + at * p.head_dim) + lane);
      const uint4 dy = __ldg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(b.grad_y) + at * p.head_dim) + lane);
      const uint32_t a[4] = {y.x, y.y, y.z, y.w}, c[4] = {dy.x, dy.y, dy.z, dy.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fmaf(low_float(a[j]), low_float(c[j]), fmaf(high_float(a[j]), high_float(c[j]), sum));
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (lane == 0) {
      if (scratch.turn != nullptr && query == 0) {
        scratch.turn[statistics.tile(head, place, place.part)] = 0;
      }
      statistics.at[head * statistics.padded + int64_t{blockIdx.x} * kTile + query] =
          query < queries ? make_float2(p.log_sum_exp[at] * kLog2e, sum) : make_float2(INFINITY, 0);
    }
  }
}

#if BASED_HAS_WGMMA
// kOfKeys: the block owns keys and values and walks over q and dy; else the other way round.
template <bool kOfKeysHere, int kSlabsHere, int kGroupsHere>
struct BackwardBlock {
  static constexpr bool kOfKeys = kOfKeysHere;
  static constexpr int kSlabs = kSlabsHere, kGroups = kGroupsHere, kThreads = kGroups * kGroup, kOwned = kGroups * kTile;
  static constexpr bool kInRegisters = kOfKeys && kSlabs == 1;  // the owned tiles
  using Memory = BackwardLayout<kSlabs, kGroups>;
  const CausalAttention& p;
  const Maps& maps;
  const Place& at;
  const Statistics& statistics;
  int group, first, window, share;  // the warpgroup's first token; query heads of a key head
  Tiles own, all;                   // tiles that this warpgroup needs, that some warpgroup needs
  int turn_at, head;                // the step with which the walk over the head that is requested begins, and that head
  Walk<Memory::kStages> walk;

  __device__ __forceinline__ BackwardBlock(const CausalAttention& of, const Maps& with, const Place& place, const Statistics& given)
      : p(of), maps(with), at(place), statistics(given), walk(shared_base() + Memory::kBarriers) {
    group = kGroups == 1 ? 0 : warp_uniform(static_cast<int>(threadIdx.x) / kGroup);
    first = at.part * kOwned + group * kTile, window = window_of(of), share = at.share;
    own = tiles(first), all = own;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) all = either(all, tiles(at.part * kOwned + i * kTile));
    own = warp_uniform(own), all = warp_uniform(all), turn_at = 0, head = kOfKeys ? at.head * share : at.head / share;
  }
  __device__ __forceinline__ Tiles tiles(int token) const {
    return kOfKeys ? tiles_of_queries(at, token, window) : tiles_of_keys(at, token, window);
  }
  __device__ __forceinline__ int count() const { return max(all.last - all.first + 1, 0); }
  __device__ __forceinline__ int rows() const { return min((kOfKeys ? at.keys : at.queries) - first, kTile); }
  // Keys and values, or q and dy: the owned, and those of a stage.
  __device__ __forceinline__ uint32_t own_tile(int which) const { return shared_base() + (group * 2 + which) * Memory::kTileBytes; }
  __device__ __forceinline__ uint32_t tile(const Stage& s, int which) const {
    return shared_base() + Memory::kRing + (2 * s.slot + which) * Memory::kTileBytes;
  }
  __device__ __forceinline__ uint32_t statistics_at(const Stage& s) const {
    return shared_base() + Memory::kStatistics + s.slot * kStatisticsBytes;
  }
  __device__ __forceinline__ static uint32_t own_here() { return shared_base() + Memory::kBarriers + 16 * Memory::kStages; }

  // One thread.
  __device__ __forceinline__ void request(int step, const Stage& s) {
    for (; step - turn_at >= count(); turn_at += count()) ++head;
    const int number = all.first + step - turn_at;
    const int64_t token = (kOfKeys ? at.q_begin : at.k_begin) + number * kTile;
    const uint32_t here = walk.here(s);
    barrier_expect(here, Memory::kStageBytes + (kOfKeys ? kStatisticsBytes : 0));
    load_tile<kSlabs>(tile(s, 0), kOfKeys ? maps.q : maps.k, head, token, here);
    load_tile<kSlabs>(tile(s, 1), kOfKeys ? maps.dy : maps.v, head, token, here);
    if constexpr (kOfKeys) bulk_load(statistics_at(s), statistics.of(head, at, number), kStatisticsBytes, here);
  }
  // One thread, before the block's place is known.
  __device__ __forceinline__ static void init_barriers() {
    barrier_init(own_here());
    Walk<Memory::kStages>::init(shared_base() + Memory::kBarriers, kThreads / 32);
    fence_shared_proxy();
  }
  __device__ __forceinline__ void start() {
    if (threadIdx.x == kThreads - 32) {
      barrier_expect(own_here(), kGroups * 2 * Memory::kTileBytes);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int64_t token = (kOfKeys ? at.k_begin : at.q_begin) + at.part * kOwned + i * kTile;
        const uint32_t to = shared_base() + i * 2 * Memory::kTileBytes;
        load_tile<kSlabs>(to, kOfKeys ? maps.k : maps.q, at.head, token, own_here());
        load_tile<kSlabs>(to + Memory::kTileBytes, kOfKeys ? maps.v : maps.dy, at.head, token, own_here());
      }
    }
    // The queries' statistics are the first to come from the kernel before this one. The kernel after this one needs them too.
    if constexpr (kOfKeys) wait_for_earlier_kernels(), let_next_kernel_start();
    walk.start(count() * (kOfKeys ? share : 1), [&](int step, const Stage& s) { request(step, s); });
    barrier_wait(own_here(), 0);
  }
  __device__ __forceinline__ void refill() {
    walk.refill([&](int step, const Stage& s) { request(step, s); });
  }
  // For the tiles of a step, numbered `number`, and zeros in them behind their row's end.
  __device__ __forceinline__ void wait(int number) const {
    walk.wait();
    if (const int rows = (kOfKeys ? at.queries : at.keys) - number * kTile; rows < kTile) {
      clear_rows<kSlabs>(tile(walk.stage, 0), rows), clear_rows<kSlabs>(tile(walk.stage, 1), rows), rows_are_cleared(group);
    }
  }
  // Tiles that only the other warpgroup needs.
  __device__ __forceinline__ void skip(int tiles) {
    for (; tiles > 0; --tiles, walk.advance()) refill(), walk.wait(), walk.release(walk.stage);
  }
};

// {log_sum_exp, D} of the queries of a tile by row of the scores.
struct ByRow {
  float2 low, high;
  __device__ __forceinline__ void load(int, float (&log_sum_exp)[4], float (&d)[4]) const {
    log_sum_exp[0] = log_sum_exp[1] = low.x, log_sum_exp[2] = log_sum_exp[3] = high.x;
    d[0] = d[1] = low.y, d[2] = d[3] = high.y;
  }
};

// Gradients of 64 tokens: dk and dv, or dq.
template <typename B>
struct Gradients {
  float of_x[B::kSlabs][32] = {}, of_v[B::kOfKeys ? B::kSlabs : 1][32] = {};

  __device__ __forceinline__ void fence_both() {
    accumulator_fence_all(of_x);
    if constexpr (B::kOfKeys) accumulator_fence_all(of_v);
  }
};

// The owned tiles as operands: in registers, where they leave shared memory's bandwidth to the others, or addresses.
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

// Asks for scores and dy·v of the tiles of a stage, in two groups; for what its tiles give to the gradients, in one.
template <typename B>
__device__ __forceinline__ void multiply(const B& block, const Owned<B>& owned, Pairs& pairs, const Stage& stage) {
  multiply_tokens<B::kSlabs>(pairs.s, owned.x, block.tile(stage, 0));
  wgmma_commit();
  multiply_tokens<B::kSlabs>(pairs.ds, owned.v, block.tile(stage, 1));
  wgmma_commit();
}
template <typename B>
__device__ __forceinline__ void add(const B& block, Gradients<B>& sum, const Pairs& pairs, const Stage& stage) {
  if constexpr (B::kOfKeys) add_weighted<B::kSlabs>(sum.of_v, pairs.p, block.tile(stage, 1));
  add_weighted<B::kSlabs>(sum.of_x, pairs.g, block.tile(stage, 0));
  wgmma_commit();
}

// P from the scores of a tile.
template <typename B, typename Statistics>
__device__ __forceinline__ void weigh(const B& block, int tile, Pairs& pairs, const Statistics& statistics) {
  const int distance = block.first + (B::kOfKeys ? -block.at.shift() : block.at.shift()) - tile * kTile, reach = block.window - 1;
  mask(pairs.s, B::kOfKeys ? distance : distance - reach, B::kOfKeys ? distance + reach : distance);
  pairs.weigh(block.p.scale * kLog2e, statistics);
}

// Walks over the warpgroup's tiles. While the weights of one are made, its dy·v and the gradients from the tile before are multiplied.
// `statistics_of` gives those of a stage.
template <typename B, typename Of>
__device__ __forceinline__ void add_tiles(B& block, Gradients<B>& sum, const Of& statistics_of) {
  const Owned<B> owned(block);
  Pairs pairs;
  block.skip(block.own.first - block.all.first);
  block.wait(block.own.first);
  Stage before = block.walk.stage;
  wgmma_begin();
  multiply(block, owned, pairs, before);
  block.refill();
  wgmma_wait<1>();
  accumulator_fence(pairs.s);
  weigh(block, block.own.first, pairs, statistics_of(before));
  wgmma_wait<0>();
  accumulator_fence(pairs.ds);
  pairs.differentiate(statistics_of(before));
  block.walk.advance();
  if (block.own.first < block.own.last) block.wait(block.own.first + 1);
  for (int tile = block.own.first + 1; tile <= block.own.last; ++tile) {
    const Stage now = block.walk.stage;
    wgmma_begin();
    multiply(block, owned, pairs, now);
    add(block, sum, pairs, warp_uniform(before));
    block.refill();
    wgmma_wait<2>();
    accumulator_fence(pairs.s);
    weigh(block, tile, pairs, statistics_of(now));
    accumulator_fence(pairs.s);
    // The branches of waiting for the next tile here keep the compiler from waiting for the products before it makes the weights.
    block.walk.advance();
    if (tile < block.own.last) block.wait(tile + 1);
    wgmma_wait<0>();
    accumulator_fence(pairs.s), accumulator_fence(pairs.ds), sum.fence_both();
    block.walk.release(before);
    pairs.differentiate(statistics_of(now));
    before = now;
  }
  wgmma_begin();
  add(block, sum, pairs, before);
  wgmma_wait<0>();
  sum.fence_both();
  block.walk.release(before);
  block.skip(block.all.last - block.own.last);
}

// To the gradient of this block's head, from the warpgroup's first token on, through an owned tile.
template <typename B>
__device__ __forceinline__ void write(const B& block, void* gradient, int64_t stride, int which, float scale,
                                      const float (&d)[B::kSlabs][32]) {
  const int64_t token = (B::kOfKeys ? block.at.k_begin : block.at.q_begin) + block.first;
  store_tile<B::kSlabs>(static_cast<bf16*>(gradient) + token * stride + block.at.head * block.p.head_dim, stride, block.p.head_dim,
                        block.rows(), block.own_tile(which), d, make_float2(scale, scale));
}
#endif

// As many blocks share a multiprocessor as registers allow.
constexpr int blocks_at_once(bool of_keys, int groups) { return groups > 1 ? 1 : of_keys ? 2 : 3; }

template <int kSlabs, int kGroups>
__global__ void __launch_bounds__(kGroups* kGroup, blocks_at_once(true, kGroups))
    gradients_of_keys(const __grid_constant__ CausalAttentionBackward b, const __grid_constant__ Order order,
                      const __grid_constant__ Maps maps, const __grid_constant__ Statistics statistics) {
#if BASED_HAS_WGMMA
  using B = BackwardBlock<true, kSlabs, kGroups>;
  if (threadIdx.x == 0) B::init_barriers();
  Place place;
  if (!find_place<B::kOwned, true>(b.forward, order, place)) return;
  B block(b.forward, maps, place, statistics);
  block.start();
  Gradients<B> sum;
  for (int turn = 0; turn < block.share; ++turn) {
    if (block.own.first <= block.own.last) {
      add_tiles(block, sum, [&](const Stage& stage) { return ByColumn{block.statistics_at(stage)}; });
    } else {
      block.skip(block.count());
    }
  }
  group_barrier(block.group);  // nobody reads the owned tiles any more: gradients go there
  write(block, b.grad_k, b.grad_k_stride, 0, b.forward.scale, sum.of_x);
  write(block, b.grad_v, b.grad_v_stride, 1, 1.0F, sum.of_v);
#else
  __trap();
#endif
}

template <int kSlabs, int kGroups>
__global__ void __launch_bounds__(kGroups* kGroup, blocks_at_once(false, kGroups))
    gradients_of_queries(const __grid_constant__ CausalAttentionBackward b, const __grid_constant__ Order order,
                         const __grid_constant__ Maps maps, const __grid_constant__ Statistics statistics) {
#if BASED_HAS_WGMMA
  using B = BackwardBlock<false, kSlabs, kGroups>;
  if (threadIdx.x == 0) B::init_barriers();
  Place place;
  if (!find_place<B::kOwned, false>(b.forward, order, place)) return;
  B block(b.forward, maps, place, statistics);
  block.start();
  if (block.own.first > block.own.last) return block.skip(block.count());
  const float2* of_rows = statistics.of(place.head, place, block.first / kTile) + 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4;
  const ByRow by_row{of_rows[0], of_rows[8]};
  Gradients<B> sum;
  add_tiles(block, sum, [&](const Stage&) { return by_row; });
  group_barrier(block.group);
  wait_for_earlier_kernels();  // whose gradients are complete when this one's are
  write(block, b.grad_q, b.grad_q_stride, 0, b.forward.scale, sum.of_x);
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
              const Order& order, const Maps& maps, const Statistics& statistics, Stream stream) {
  constexpr int kBytes = BackwardLayout<kSlabs, kGroups>::kBytes;
  if (!fits(order)) return {"causal_attention: too many tokens for one launch"};
  if (const cudaError_t e = allow_shared_memory(kernel, kBytes); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {grid_of(order, heads), kGroups * kGroup, kBytes}, stream, b, order, maps, statistics);
}

template <int kSlabs>
void launch_prepare(const CausalAttentionBackward& b, const Statistics& statistics, const Scratch& scratch, Stream stream) {
  prepare<8 * kSlabs><<<dim3(static_cast<unsigned>(statistics.padded / kTile), 4), 256, 0, stream_of(stream)>>>(b, statistics, scratch);
}

template <int kSlabs, int kGroups>
Status run(const CausalAttentionBackward& b, const Maps& maps, const Statistics& statistics, Stream stream) {
  const CausalAttention& p = b.forward;
  launch_prepare<kSlabs>(b, statistics, {}, stream);
  const Order keys = make_order(p, p.k_tokens, kGroups * kTile, false);
  const Order queries = make_order(p, p.q_tokens, kGroups * kTile, true);
  const Status s = launch<kSlabs, kGroups>(gradients_of_keys<kSlabs, kGroups>, b, p.kv_heads, keys, maps, statistics, stream);
  if (!s.ok()) return s;
  return launch<kSlabs, kGroups>(gradients_of_queries<kSlabs, kGroups>, b, p.heads, queries, maps, statistics, stream);
}

// Long walks make all gradients at once. With few tiles to walk over, blocks spend their time waiting for the first: small ones then,
// several on a multiprocessor.
bool at_once(const CausalAttention& p) {
  constexpr int kShortWindow = 256;
  return p.head_dim <= 64 && (p.window == 0 || p.window > kShortWindow);
}

// Scratch: statistics, then, where all gradients are made at once, sums of dq, the ticket, turns.
struct Sizes {
  int64_t statistics, sums, turns;
};
Sizes sizes_of(const CausalAttention& p) {
  const int64_t tokens = make_statistics(p, nullptr).padded * p.heads;
  return {tokens * 8, at_once(p) ? tokens * 64 * 4 : 0, at_once(p) ? 16 + tokens / kTile * 4 : 0};
}

Status choose(const CausalAttentionBackward& b, void* scratch, Stream stream) {
  const CausalAttention& p = b.forward;
  const Statistics statistics = make_statistics(p, scratch);
  Maps maps;
  if (const Status s = describe(maps, b); !s.ok()) return s;
  if (p.head_dim > 64) return run<2, 2>(b, maps, statistics, stream);
  if (!at_once(p)) return run<1, 1>(b, maps, statistics, stream);
  const Sizes sizes = sizes_of(p);
  char* sums = static_cast<char*>(scratch) + sizes.statistics;
  int* ticket = reinterpret_cast<int*>(sums + sizes.sums);
  const Scratch parts{reinterpret_cast<float4*>(sums), ticket + 4, ticket};
  launch_prepare<1>(b, statistics, parts, stream);
  return gradients_at_once(b, maps, statistics, parts, stream);
}

}  // namespace
}  // namespace based::kernels::cuda::detail::causal

namespace based::kernels::cuda {

int64_t causal_attention_backward_scratch(const CausalAttentionBackward& b) {
  if (b.forward.dtype == DType::f32) return detail::pairs::backward_scratch(detail::pairs::problem_of(b.forward));
  const detail::causal::Sizes sizes = detail::causal::sizes_of(b.forward);
  return sizes.statistics + sizes.sums + sizes.turns;
}

Status causal_attention_backward(const CausalAttentionBackward& b, void* scratch, Stream stream) {
  const CausalAttention& p = b.forward;
  if (p.k_tokens == 0 || p.heads == 0) return {};
  if (p.log_sum_exp == nullptr) return {"causal_attention_backward: log_sum_exp must be given"};
  if (p.dtype == DType::f32) return detail::pairs::backward(detail::pairs::gradients_of(b, scratch), stream);
  if ((b.grad_q_stride | b.grad_k_stride | b.grad_v_stride) % 8 != 0 || !aligned16(b.grad_y) || !aligned16(b.grad_q) ||
      !aligned16(b.grad_k) || !aligned16(b.grad_v)) {
    return {"causal_attention_backward: grad_y and the gradients must be aligned to 16 bytes"};
  }
  if (p.q_tokens == 0) {
    const size_t width = size_t{2} * p.kv_heads * p.head_dim;
    const cudaStream_t s = detail::stream_of(stream);
    const cudaError_t e = cudaMemset2DAsync(b.grad_k, size_t{2} * b.grad_k_stride, 0, width, p.k_tokens, s);
    if (e != cudaSuccess) return detail::status_of(e);
    return detail::status_of(cudaMemset2DAsync(b.grad_v, size_t{2} * b.grad_v_stride, 0, width, p.k_tokens, s));
  }
  return detail::causal::choose(b, scratch, stream);
}

}  // namespace based::kernels::cuda
