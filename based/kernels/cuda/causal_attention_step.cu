// Decode attention over a ring of keys (algorithm 3). The first keys of every warp are requested before the position is known: which of
// them count is decided when they have come.
//   streamed (bf16, sm_90): a warp a head, keys through shared memory to the tensor cores.
//   plain: warps share a head's keys; in a warp, groups of lanes take a key each, 16 bytes of it a lane.
#include <algorithm>

#include "based/kernels/causal_attention.h"
#include "based/kernels/causal_attention_plan.h"
#include "based/kernels/cuda/attention_sums.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/rotary_angle.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

using Share = AttentionShare;
constexpr int kMostWarps = Share::kMostWarps, kTileKeys = Share::kTileKeys, kTurnBytes = Share::kTurnBytes;

// Where this block's warps are in the problem.
struct Split {
  int heads, warps;  // heads of a block, warps of a head
};

// Where in the ring key `written` goes; 32 bits where they do.
__device__ __forceinline__ int64_t ring_place(int64_t written, int64_t capacity) {
  return (written | capacity) >> 32 == 0 ? static_cast<uint32_t>(written) % static_cast<uint32_t>(capacity) : written % capacity;
}

// kLanes lanes hold a key.
template <typename T, typename R, bool kVector, int kLanes, int kKeys>
struct Attention {
  static constexpr int kGroups = 32 / kLanes;
  const CausalAttentionStep& p;
  int64_t slot, count, newest;  // keys seen with the new one, and where in the ring that is
  int lane, group, part, held;  // the lane's first element of a key, and how many it has
  R *k_ring, *v_ring;
  int64_t stride;
  Unit<T> query, new_k, new_v;
  float q[kUnit];
  Unit<R> k[kKeys], v[kKeys];

  __device__ __forceinline__ Attention(const CausalAttentionStep& params, int64_t row, int head) : p(params) {
    lane = threadIdx.x % 32, group = lane / kLanes, part = lane % kLanes * kUnit, held = min(max(p.head_dim - part, 0), kUnit);
    slot = p.slot != nullptr ? p.slot[row] : row, stride = int64_t{p.kv_heads} * p.head_dim;
    const int64_t first = slot * p.capacity * stride + int64_t{head / (p.heads / p.kv_heads)} * p.head_dim + part;
    k_ring = static_cast<R*>(p.k_ring) + first, v_ring = static_cast<R*>(p.v_ring) + first;
  }
  __device__ __forceinline__ void request(int64_t base, int64_t limit) {
    const int64_t first = (base + group) * stride;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      if (held == 0 || base + group + u * kGroups >= limit) continue;
      k[u].template load<kVector>(k_ring + first + u * kGroups * stride, held);
      v[u].template load<kVector>(v_ring + first + u * kGroups * stride, held);
    }
  }
  // The token's own q, k and v: requested before the ring's keys, which would hold them up.
  __device__ __forceinline__ void request_token(int64_t row, int head) {
    const int64_t at = int64_t{head / (p.heads / p.kv_heads)} * p.head_dim + part;
    if (held == 0) return;
    query.template load<kVector>(static_cast<const T*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim + part, held);
    new_k.template load<kVector>(static_cast<const T*>(p.k) + row * p.k_stride + at, held);
    new_v.template load<kVector>(static_cast<const T*>(p.v) + row * p.v_stride + at, held);
  }
  __device__ __forceinline__ void set_position(int64_t written) {
    count = min(written + 1, p.capacity);
    newest = ring_place(written, p.capacity);
  }
  __device__ __forceinline__ void set_query() {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) q[i] = query.get(i) * (p.scale * 1.44269504088896341F);
  }
  __device__ __forceinline__ float score(const Unit<R>& key) const {
    float s = 0;
    if (held != 0) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) s = fmaf(q[c], key.get(c), s);
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) s += __shfl_xor_sync(~0U, s, distance);
    return s;
  }
  // The new key: into the ring, and, where `counts`, into the sums.
  __device__ __forceinline__ void take_new(int head, bool counts, Sums& sums) {
    float x[kUnit], y[kUnit];
#pragma unroll
    for (int c = 0; c < kUnit; ++c) x[c] = new_k.get(c), y[c] = new_v.get(c);
    Unit<R> key, value;
    key.set(x), value.set(y);
    const float s = score(key);
    if (!counts) return;
    sums.top = s;
    sums.add(s, value);
    if (head % (p.heads / p.kv_heads) != 0 || held == 0) return;
    key.template store<kVector>(k_ring + newest * stride, held);
    value.template store<kVector>(v_ring + newest * stride, held);
  }
  __device__ __forceinline__ void add_tile(int64_t base, Sums& sums) {
    float scores[kKeys], top = sums.top;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int64_t i = base + group + u * kGroups;
      const float s = score(k[u]);
      scores[u] = i < count && i != newest ? s : -INFINITY;
      top = fmaxf(top, scores[u]);
    }
    sums.raise(top);
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      if (scores[u] > -INFINITY) sums.add(scores[u], v[u]);
    }
  }
};

// Leaves each warp's sums in shared memory, [warps][head_dim + 2].
template <typename Tile>
__device__ __forceinline__ void merge_warps(const CausalAttentionStep& p, const Tile& attention, Sums& sums, float* partial) {
  leave_sums<32 / Tile::kGroups>(sums, attention.part, attention.held, partial + threadIdx.x / 32 * (p.head_dim + 2));
  __syncthreads();
}

// Called by a head's first warp: y from the sums of its `warps` warps.
template <typename T>
__device__ __forceinline__ void write_output(const CausalAttentionStep& p, const float* partial, int warps, int64_t row, int head) {
  const int width = p.head_dim + 2;
  const Merged merged(partial + threadIdx.x / 32 * width, warps, width);
  for (int d = threadIdx.x % 32; d < p.head_dim; d += 32)
    static_cast<T*>(p.y)[(row * p.heads + head) * p.head_dim + d] = from_float<T>(merged.at(d).output());
}

template <typename T, typename R, bool kVector, int kLanes>
__global__ void __launch_bounds__(32 * kMostWarps) step_rows(const __grid_constant__ CausalAttentionStep p, const Split split) {
  extern __shared__ float shared[];
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, head = blockIdx.y * split.heads + warp / split.warps, part = warp % split.warps;
  constexpr int kKeys = sizeof(R) == 2 ? 8 : 4, kTile = kKeys * 32 / kLanes;
  using Tile = Attention<T, R, kVector, kLanes, kKeys>;
  Tile attention(p, row, min(head, p.heads - 1));
  const bool active = head < p.heads;
  int64_t base = part * kTile;
  attention.request_token(row, min(head, p.heads - 1));
  const int64_t written = p.position[row];
  attention.request(base, active ? p.capacity : 0);
  attention.set_position(written), attention.set_query();
  Sums sums;
  if (active) {
    if (part == 0) attention.take_new(head, attention.group == 0, sums);
    for (; base < attention.count; attention.request(base, attention.count)) {
      attention.add_tile(base, sums);
      base += split.warps * kTile;
    }
  }
  merge_warps(p, attention, sums, shared);
  if (part == 0 && active) write_output<T>(p, shared, split.warps, row, head);
}

// The streamed kernel (sm_90). A warp has a head: it requests tiles of 16 keys and values into a ring of its own in shared memory, kRing
// tiles ahead, and takes two at a time to the tensor cores. The order of its sums depends on neither kRing nor the blocks that a row has.
template <int kSteps, int kRing>
constexpr int warp_bytes() {
  return kRing * 2 * kTileKeys * kSteps * 32;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// kSteps: head_dim in steps of 16, rounded up; what is beyond head_dim is zero.
template <int kSteps, int kRing>
struct HeadWarp {
  static constexpr int kRow = kSteps * 32, kTile = 2 * kTileKeys * kRow;          // bytes
  static constexpr int kBatch = 2;                                                // tiles at a time
  static constexpr int kLanes = kSteps <= 4 ? 8 : 16, kKeysAtOnce = 32 / kLanes;  // lanes of a key's copy
  const CausalAttentionStep& p;
  const int64_t row;
  const int head, kv_head, lane;
  const uint32_t base, turns;  // kRing tiles, each of keys and then values; the turns of the token's pairs
  int64_t slot, stride;
  char *k_ring, *v_ring;
  int count, newest;  // keys seen with the new one, and where in the ring that is
  uint32_t q[kSteps][2];
  uint4 token;  // lanes 0 … 15: 16 bytes each of the token's key, 16 … 31: of its value
  float top = -INFINITY, total = 0, sum[kSteps][4] = {};

  __device__ __forceinline__ HeadWarp(const CausalAttentionStep& params, int64_t at, int of, uint32_t shared)
      : p(params),
        row(at),
        head(of),
        kv_head(of / (params.heads / params.kv_heads)),
        lane(threadIdx.x % 32),
        base(shared + threadIdx.x / 32 * (warp_bytes<kSteps, kRing>())),
        turns(shared + blockDim.x / 32 * (warp_bytes<kSteps, kRing>())) {
    slot = p.slot != nullptr ? p.slot[row] : row, stride = int64_t{p.kv_heads} * p.head_dim * 2;
    const int64_t first = slot * p.capacity * stride + int64_t{kv_head} * p.head_dim * 2;
    k_ring = static_cast<char*>(p.k_ring) + first, v_ring = static_cast<char*>(p.v_ring) + first;
  }
  // Units of 16 bytes are permuted in each row, so that the same unit of eight rows lies in eight different banks.
  __device__ __forceinline__ uint32_t address(int place, int which, int key, int unit) const {
    const int permuted = unit ^ (kSteps == 7 ? key / 4 % 2 : key % 8);
    return base + place * kTile + (which * kTileKeys + key) * kRow + permuted * 16;
  }
  // The address 2j units on.
  __device__ __forceinline__ static uint32_t step(uint32_t at, int j) { return kSteps == 7 ? at + 32 * j : at ^ (32 * j); }

  __device__ __forceinline__ void request(int tile, int place) const {
    const int unit = lane % kLanes, key = lane / kLanes;
    if (unit >= 2 * kSteps) return;
    const int64_t from = (int64_t{tile} * kTileKeys + key) * stride + unit * 16;
#pragma unroll
    for (int i = 0; i < kTileKeys; i += kKeysAtOnce) {
      const bool valid = tile * kTileKeys + key + i < p.capacity && unit * kUnit < p.head_dim;
      const int64_t at = valid ? from + i * stride : 0;
      copy_async_16(address(place, 0, key + i, unit), k_ring + at, valid);
      copy_async_16(address(place, 1, key + i, unit), v_ring + at, valid);
    }
  }
  __device__ __forceinline__ void request_token() {
    const auto* query = static_cast<const bf16*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim;
    const auto* own = lane < 16 ? static_cast<const bf16*>(p.k) + row * p.k_stride : static_cast<const bf16*>(p.v) + row * p.v_stride;
    const int d = lane % 16 * kUnit;
    token = make_uint4(0, 0, 0, 0);
    if (d < p.head_dim) token = *reinterpret_cast<const uint4*>(own + int64_t{kv_head} * p.head_dim + d);
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int at = 8 * i + 2 * (lane % 4);
      q[i / 2][i % 2] = at < p.head_dim ? *reinterpret_cast<const uint32_t*>(query + at) : 0;
    }
  }
  // Of the token in the ring; and rotary turns, where pair d is (d, d + 8 kSteps), head_dim being 16 kSteps. A thread finds the same pairs
  // each time.
  __device__ __forceinline__ void find_places(int64_t written) {
    count = static_cast<int>(min(written + 1, p.capacity)), newest = static_cast<int>(ring_place(written, p.capacity));
    if (p.rotary_base == 0) return;
    for (int pair = threadIdx.x; pair < 8 * kSteps; pair += blockDim.x) {
      const float2 turn = rotary_turn(written, rotary_frequency(pair, 16 * kSteps, p.rotary_base));
      store_shared_float(turns + 8 * pair, turn.x), store_shared_float(turns + 8 * pair + 4, turn.y);
    }
  }
  // Two neighbouring pairs, {a, b} rotated by t = {cosine, sine, cosine, sine}.
  __device__ __forceinline__ static uint32_t rotated_first(uint32_t a, uint32_t b, float4 t) {
    return pack_bf16(low_float(a) * t.x - low_float(b) * t.y, high_float(a) * t.z - high_float(b) * t.w);
  }
  __device__ __forceinline__ static uint32_t rotated_second(uint32_t a, uint32_t b, float4 t) {
    return pack_bf16(low_float(a) * t.y + low_float(b) * t.x, high_float(a) * t.w + high_float(b) * t.z);
  }
  __device__ __forceinline__ void rotate_token() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float4 t = load_shared_float4(turns + 8 * (8 * i + 2 * (lane % 4)));
      uint32_t &a = q[i / 2][i % 2], &b = q[(i + kSteps) / 2][(i + kSteps) % 2];
      const uint32_t first = rotated_first(a, b, t);
      b = rotated_second(a, b, t), a = first;
    }
    const int unit = lane % 16;
    const bool is_first = unit < kSteps;
    uint32_t words[4] = {token.x, token.y, token.z, token.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t other = __shfl_sync(~0U, words[w], (is_first ? lane + kSteps : lane - kSteps) % 32);
      const float4 t = load_shared_float4(turns + 8 * ((is_first ? unit : unit - kSteps) * 8 % (8 * kSteps) + 2 * w));
      if (lane < 16 && unit < 2 * kSteps) words[w] = is_first ? rotated_first(words[w], other, t) : rotated_second(other, words[w], t);
    }
    token = make_uint4(words[0], words[1], words[2], words[3]);
  }
  // The new key into the ring in memory, once for the heads that share it.
  __device__ __forceinline__ void store_token() const {
    const int d = lane % 16 * kUnit;
    if (d < p.head_dim && head % (p.heads / p.kv_heads) == 0)
      *reinterpret_cast<uint4*>((lane < 16 ? k_ring : v_ring) + newest * stride + d * 2) = token;
  }
  // The new key into its tile; and zeros for values that are no key's yet, for 0 times what they hold may be NaN.
  __device__ __forceinline__ void complete(int tile, int place) const {
    const int unit = lane % 16, first = tile * kTileKeys, own = newest - first;
    const bool has_own = own >= 0 && own < kTileKeys;
    if (first + kTileKeys <= count && !has_own) return;
    if (unit < 2 * kSteps) {
      if (has_own) store_shared_16(address(place, lane / 16, own, unit), token.x, token.y, token.z, token.w);
      for (int key = max(count - first, 0); key < kTileKeys; ++key) {
        if (lane < 16) store_shared_16(address(place, 1, key, unit), 0, 0, 0, 0);
      }
    }
    __syncwarp();
  }
  // Scores of keys lane / 4 and that + 8. The query is the same in all columns of b, so every lane of a row has them.
  __device__ __forceinline__ float2 scores(int tile, int place) const {
    const uint32_t at = address(place, 0, lane % 16, lane / 16);
    float d[2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint32_t keys[4];
      ldmatrix(keys, step(at, j));
      mma_16x8x16(d[j % 2], keys, q[j][0], q[j][1]);
    }
    const int key = tile * kTileKeys + lane / 4;
    const float scale = p.scale * 1.44269504088896341F;
    return make_float2(key < count ? (d[0][0] + d[1][0]) * scale : -INFINITY, key + 8 < count ? (d[0][2] + d[1][2]) * scale : -INFINITY);
  }
  // Weights as two bf16: rounded in the even columns of b, what rounding left in the odd ones. Both columns' sums together are exact.
  __device__ __forceinline__ static uint32_t columns(float weight) {
    const float rounded = to_float(from_float<bf16>(weight));
    return transpose_matrix(pack_bf16(rounded, weight - rounded));
  }
  __device__ __forceinline__ void add_values(int place, float2 weight) {
    const uint32_t at = address(place, 1, lane % 8 + lane / 16 * 8, lane / 8 % 2), b0 = columns(weight.x), b1 = columns(weight.y);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint32_t values[4];
      ldmatrix_transposed(values, step(at, j));
      mma_16x8x16(sum[j], values, b0, b1);
    }
  }
  __device__ __forceinline__ void add_batch(int tile, const int (&place)[kBatch]) {
    float2 s[kBatch];
    float largest = top;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) s[i] = scores(tile + i, place[i]), largest = fmaxf(largest, fmaxf(s[i].x, s[i].y));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, distance));
    if (largest != top) {
      const float factor = exp2f(top - largest);
      total *= factor, top = largest;
#pragma unroll
      for (auto& part : sum) {
#pragma unroll
        for (float& x : part) x *= factor;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float2 weight = make_float2(exp2f(s[i].x - top), exp2f(s[i].y - top));
      total += weight.x + weight.y;
      add_values(place[i], weight);
    }
  }
  __device__ __forceinline__ void add_keys() {
    int next = 0;
#pragma unroll 1
    for (int tile = 0; tile * kTileKeys < count; tile += kBatch) {
      int place[kBatch];
#pragma unroll
      for (int& at : place) at = next, next = next + 1 == kRing ? 0 : next + 1;
      copy_async_wait<kRing - kBatch>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) complete(tile + i, place[i]);
      add_batch(tile, place);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if ((tile + i + kRing) * kTileKeys < count) request(tile + i + kRing, place[i]);
        copy_async_commit();
      }
    }
    copy_async_wait<0>();  // a short text has not waited for all
  }
  __device__ __forceinline__ void write() {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) total += __shfl_xor_sync(~0U, total, distance);
    bf16* y = static_cast<bf16*>(p.y) + (row * p.heads + head) * p.head_dim;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const int d = 16 * j + lane / 4;
      if (j % 4 != lane % 4) continue;
      if (d < p.head_dim) y[d] = from_float<bf16>((sum[j][0] + sum[j][1]) / total);
      if (d + 8 < p.head_dim) y[d + 8] = from_float<bf16>((sum[j][2] + sum[j][3]) / total);
    }
  }
};
#endif

// The heads of a row are shared out over `split` blocks.
template <int kSteps, int kRing>
__global__ void __launch_bounds__(32 * kMostWarps, kSteps <= 4 ? 2 : 1)
    step_streamed(const __grid_constant__ CausalAttentionStep p, const int split) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(256) char memory[];
  let_next_kernel_start();
  if (!p.ring_is_private) wait_for_earlier_kernels();
  const int warp = threadIdx.x / 32, rank = blockIdx.x % split;
  HeadWarp<kSteps, kRing> own(p, blockIdx.x / split, rank * (blockDim.x / 32) + warp, shared_address(memory));
  // Positions are written as a step begins. Before that is waited for, the newest one is most often there, so places and turns are found
  // by what is there, and again where it was another. They are read from the L2 cache, where they are written.
  const int64_t* position = p.position + own.row;
  const int64_t early = __ldcg(position);
  if (!p.ring_is_private) own.request_token();  // before the ring's keys, which would hold it up
#pragma unroll
  for (int tile = 0; tile < kRing; ++tile) {
    if (tile * kTileKeys < p.capacity) own.request(tile, tile);
    copy_async_commit();
  }
  own.find_places(early);
  if (p.ring_is_private) {
    wait_for_earlier_kernels();
    const int64_t written = __ldcg(position);
    own.request_token();
    if (written != early) own.find_places(written);
  }
  if (p.rotary_base != 0) {
    __syncthreads();
    own.rotate_token();
  }
  own.store_token();
  own.add_keys();
  own.write();
#else
  __trap();
#endif
}

template <typename T, typename R, bool kVector>
auto* choose_lanes(int head_dim) {
  if (head_dim <= 4 * kUnit) return step_rows<T, R, kVector, 4>;
  if (head_dim <= 8 * kUnit) return step_rows<T, R, kVector, 8>;
  return head_dim <= 16 * kUnit ? step_rows<T, R, kVector, 16> : step_rows<T, R, kVector, 32>;
}
template <typename T, typename R>
auto* choose(const CausalAttentionStep& p) {
  const bool vector = has_whole_units(p);
  return vector ? choose_lanes<T, R, true>(p.head_dim) : choose_lanes<T, R, false>(p.head_dim);
}

template <int kSteps, int kRing>
Status launch_streamed(const CausalAttentionStep& p, const Share& share, Stream stream) {
  const int shared = share.warps * warp_bytes<kSteps, kRing>() + kTurnBytes;
  if (const cudaError_t e = allow_shared_memory(step_streamed<kSteps, kRing>, shared); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(p.rows * share.split), threads = static_cast<unsigned>(32 * share.warps);
  return launch_overlapped(step_streamed<kSteps, kRing>, {blocks, threads, shared}, stream, p, share.split);
}

// Four tiles ahead where a block has few heads; with all heads two, so that more blocks fit.
template <int kSteps>
Status stream_rows(const CausalAttentionStep& p, const Share& share, Stream stream) {
  return share.warps <= 4 ? launch_streamed<kSteps, 4>(p, share, stream) : launch_streamed<kSteps, 2>(p, share, stream);
}

}  // namespace

Status causal_attention_step(const CausalAttentionStep& p, Stream stream) {
  if (p.rows == 0) return {};
  if (p.head_dim > 32 * kUnit) return {"causal_attention_step: head_dim is larger than 256"};
  const Share share = plan_streamed_attention(p, this_gpu());
  if (p.rotary_base != 0 && !causal_attention_step_fuses_rotary(p, this_gpu()))
    return {"causal_attention_step: no kernel that turns q and k"};
  if (share.warps > 0) {
    const int steps = attention_steps(p);
    auto* run = steps == 4 ? stream_rows<4> : steps == 7 ? stream_rows<7> : stream_rows<8>;
    return run(p, share, stream);
  }
  const bool bf = p.dtype == DType::bf16, ring_bf = p.ring_dtype == DType::bf16;
  auto* kernel =
      bf ? (ring_bf ? choose<bf16, bf16>(p) : choose<bf16, float>(p)) : (ring_bf ? choose<float, bf16>(p) : choose<float, float>(p));
  // A short ring: one block has the whole row. A long one: blocks of one head.
  const bool whole_row = p.heads <= kMostWarps && p.capacity * p.heads * p.head_dim <= 256 * 1024;
  const Split split = whole_row ? Split{p.heads, std::max(1, kMostWarps / p.heads)} : Split{1, 8};
  const int warps = split.heads * split.warps, bytes = warps * (p.head_dim + 2) * 4;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.heads, split.heads)));
  kernel<<<grid, 32 * warps, bytes, stream_of(stream)>>>(p, split);
  return launched();
}

}  // namespace based::kernels::cuda
