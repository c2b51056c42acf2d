// Decode attention over a ring of keys (algorithm 3). Warps share a head's keys; in a warp, groups of lanes take a key each, 16 bytes of it
// a lane. The first keys of every warp are requested before the position is known: which of them count is decided when they have come.
#include <algorithm>

#include "based/kernels/causal_attention.h"
#include "based/kernels/cuda/attention_sums.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kMostWarps = 16;

// Where this block's warps are in the problem.
struct Split {
  int heads, warps;  // heads of a block, warps of a head
};

// kLanes lanes hold a key.
template <typename T, typename R, bool kVector, int kLanes, int kKeys>
struct Attention {
  static constexpr int kGroups = 32 / kLanes, kTile = kKeys * kGroups;
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
  // Keys i, i + 1, … of a chunk in shared memory, `key_bytes` apart.
  __device__ __forceinline__ void fetch(uint32_t keys, uint32_t values, int i, uint32_t key_bytes) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const uint32_t at = (i + group + u * kGroups) * key_bytes;
      if (held == 0) continue;
      const uint4 a = load_shared_16(keys + at), b = load_shared_16(values + at);
      k[u].word[0] = a.x, k[u].word[1] = a.y, k[u].word[2] = a.z, k[u].word[3] = a.w;
      v[u].word[0] = b.x, v[u].word[1] = b.y, v[u].word[2] = b.z, v[u].word[3] = b.w;
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
    newest = (written | p.capacity) >> 32 == 0 ? static_cast<uint32_t>(written) % static_cast<uint32_t>(p.capacity) : written % p.capacity;
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
__global__ void __launch_bounds__(32 * kMostWarps)
    step_rows(const __grid_constant__ CausalAttentionStep p, const Split split, const bool advance) {
  extern __shared__ float shared[];
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, head = blockIdx.y * split.heads + warp / split.warps, part = warp % split.warps;
  using Tile = Attention<T, R, kVector, kLanes, sizeof(R) == 2 ? 8 : 4>;
  Tile attention(p, row, min(head, p.heads - 1));
  const bool active = head < p.heads;
  int64_t base = part * Tile::kTile;
  attention.request_token(row, min(head, p.heads - 1));
  const int64_t written = p.position[attention.slot];
  attention.request(base, active ? p.capacity : 0);
  attention.set_position(written);
  Sums sums;
  if (active) {
    if (part == 0) attention.take_new(head, attention.group == 0, sums);
    for (; base < attention.count; attention.request(base, attention.count)) {
      attention.add_tile(base, sums);
      base += split.warps * Tile::kTile;
    }
  }
  merge_warps(p, attention, sums, shared);
  if (advance && threadIdx.x == 0) ++p.position[attention.slot];
  if (part == 0 && active) write_output<T>(p, shared, split.warps, row, head);
}

// The streamed kernel: `stages` of `keys` keys and values each in shared memory, then a barrier for each.
struct Stream90 {
  int keys, stages, warps, chunks;  // warps of a head, chunks of a full ring
  uint32_t key_bytes;               // of all heads
  __host__ __device__ uint32_t partial_at() const { return stages * keys * 2 * key_bytes + stages * 8; }
  int shared_bytes(const CausalAttentionStep& p) const { return static_cast<int>(partial_at()) + p.heads * warps * (p.head_dim + 2) * 4; }
};

template <int kLanes>
__global__ void __launch_bounds__(32 * kMostWarps) step_streamed(const __grid_constant__ CausalAttentionStep p, const Stream90 plan) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) float shared[];
  overlap_kernels();
  const int64_t row = blockIdx.x, slot = p.slot != nullptr ? p.slot[row] : row;
  const uint32_t base = shared_address(shared), half = plan.keys * plan.key_bytes, barriers = base + 2 * plan.stages * half;
  const char* rings[2] = {static_cast<const char*>(p.k_ring) + slot * p.capacity * plan.key_bytes,
                          static_cast<const char*>(p.v_ring) + slot * p.capacity * plan.key_bytes};
  const auto request = [&](int chunk, int stage) {
    const uint32_t bytes = static_cast<uint32_t>(min(p.capacity - chunk * plan.keys, int64_t{plan.keys})) * plan.key_bytes;
    barrier_expect(barriers + 8 * stage, 2 * bytes);
    for (int i = 0; i < 2; ++i) bulk_load(base + (2 * stage + i) * half, rings[i] + int64_t{chunk} * half, bytes, barriers + 8 * stage);
  };
  const int first = min(plan.chunks, plan.stages);
  using Tile = Attention<bf16, bf16, true, kLanes, 4>;
  const int warp = threadIdx.x / 32, head = warp / plan.warps, part = warp % plan.warps;
  Tile attention(p, row, head);
  attention.request_token(row, head);
  const int64_t written = p.position[slot];
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int s = 0; s < plan.stages; ++s) barrier_init(barriers + 8 * s);
    fence_shared_proxy();
#pragma unroll 1
    for (int chunk = 0; chunk < first; ++chunk) request(chunk, chunk);
  }
  attention.set_position(written);
  Sums sums;
  if (part == 0) attention.take_new(head, attention.group == 0, sums);
  __syncthreads();
  if (threadIdx.x == 0) ++p.position[slot];
  const int chunks = max(first, (static_cast<int>(attention.count) + plan.keys - 1) / plan.keys);
  const uint32_t within = (head / (p.heads / p.kv_heads) * p.head_dim + attention.part) * 2;
  uint32_t phase = 0;
#pragma unroll 1
  for (int chunk = 0, stage = 0; chunk < chunks; ++chunk) {
    const uint32_t at = base + 2 * stage * half + within;
    barrier_wait(barriers + 8 * stage, phase);
    for (int i = part * Tile::kTile; i < plan.keys; i += plan.warps * Tile::kTile) {
      attention.fetch(at, at + half, i, plan.key_bytes);
      attention.add_tile(chunk * plan.keys + i, sums);
    }
    if (chunk + plan.stages < chunks) {
      __syncthreads();
      if (threadIdx.x == 0) request(chunk + plan.stages, stage);
    }
    if (++stage == plan.stages) stage = 0, phase ^= 1;
  }
  float* partial = reinterpret_cast<float*>(reinterpret_cast<char*>(shared) + plan.partial_at());
  merge_warps(p, attention, sums, partial);
  if (part == 0) write_output<bf16>(p, partial, plan.warps, row, head);
#endif
}

__global__ void advance_positions(const __grid_constant__ CausalAttentionStep p) {
  const int64_t row = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (row < p.rows) ++p.position[p.slot != nullptr ? p.slot[row] : row];
}

bool whole_units(const CausalAttentionStep& p) {
  return p.head_dim % kUnit == 0 && p.q_stride % kUnit == 0 && p.k_stride % kUnit == 0 && p.v_stride % kUnit == 0 && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v) && aligned16(p.k_ring) && aligned16(p.v_ring);
}

template <typename T, typename R, bool kVector>
auto* choose_lanes(int head_dim) {
  if (head_dim <= 4 * kUnit) return step_rows<T, R, kVector, 4>;
  if (head_dim <= 8 * kUnit) return step_rows<T, R, kVector, 8>;
  return head_dim <= 16 * kUnit ? step_rows<T, R, kVector, 16> : step_rows<T, R, kVector, 32>;
}
template <typename T, typename R>
auto* choose(const CausalAttentionStep& p) {
  const bool vector = whole_units(p);
  return vector ? choose_lanes<T, R, true>(p.head_dim) : choose_lanes<T, R, false>(p.head_dim);
}

// No stages where the streamed kernel does not apply.
Stream90 plan_stream(const CausalAttentionStep& p) {
  Stream90 plan{16, 0, std::max(1, kMostWarps / p.heads), 0, static_cast<uint32_t>(p.kv_heads * p.head_dim * 2)};
  const int64_t limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 128, tile = p.head_dim <= 64 ? 16 : 8;
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9 || p.dtype != DType::bf16 || p.ring_dtype != DType::bf16 ||
      p.head_dim % kUnit != 0 || p.head_dim <= 32 || p.head_dim > 128 || p.heads > kMostWarps || !aligned16(p.k_ring) ||
      !aligned16(p.v_ring) || !aligned16(p.y)) {
    return plan;
  }
  plan.keys = static_cast<int>(tile), plan.chunks = static_cast<int>(ceil_div(p.capacity, tile));
  plan.stages = static_cast<int>(std::min<int64_t>((limit - plan.shared_bytes(p)) / (2 * plan.keys * plan.key_bytes), 8));
  return plan;
}

}  // namespace

Status causal_attention_step(const CausalAttentionStep& p, Stream stream) {
  if (p.rows == 0) return {};
  if (p.head_dim > 32 * kUnit) return {"causal_attention_step: head_dim is larger than 256"};
  if (const Stream90 plan = plan_stream(p); plan.stages >= 2) {
    auto* streamed = p.head_dim <= 64 ? step_streamed<8> : step_streamed<16>;
    if (const cudaError_t e = allow_shared_memory(streamed, plan.shared_bytes(p)); e != cudaSuccess) return status_of(e);
    return launch_overlapped(
        streamed, {static_cast<unsigned>(p.rows), static_cast<unsigned>(32 * p.heads * plan.warps), plan.shared_bytes(p)}, stream, p, plan);
  }
  const bool bf = p.dtype == DType::bf16, ring_bf = p.ring_dtype == DType::bf16;
  auto* kernel =
      bf ? (ring_bf ? choose<bf16, bf16>(p) : choose<bf16, float>(p)) : (ring_bf ? choose<float, bf16>(p) : choose<float, float>(p));
  // A short ring: one block has the whole row, and advances its position when all its warps have read it. A long one: blocks of one head.
  const bool whole_row = p.heads <= kMostWarps && p.capacity * p.heads * p.head_dim <= 256 * 1024;
  const Split split = whole_row ? Split{p.heads, std::max(1, kMostWarps / p.heads)} : Split{1, 8};
  const int warps = split.heads * split.warps, bytes = warps * (p.head_dim + 2) * 4;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.heads, split.heads)));
  kernel<<<grid, 32 * warps, bytes, stream_of(stream)>>>(p, split, whole_row);
  if (!whole_row) advance_positions<<<static_cast<unsigned>(ceil_div(p.rows, 128)), 128, 0, stream_of(stream)>>>(p);
  return launched();
}

}  // namespace based::kernels::cuda
