// Decode attention over keys in pages. A block owns a row, a few query heads that read the same key head, and a part of the row's keys. Its
// warps process tiles of keys in turn. Within a warp each group of lanes processes one key, 16 bytes per lane. If rows and heads alone fill
// the GPU, a block processes all keys of its row. Otherwise the keys are split, and a second launch merges the partial sums. The number of
// parts depends only on the number of rows; the boundaries of the parts depend only on the row's own length.
#include "based/kernels/attention/paged_attention.h"

#include <algorithm>

#include "based/kernels/attention/cuda/attention_sums.cuh"
#include "based/kernels/common/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kWarps = 4;
constexpr int64_t kMinKeys = 256;  // minimum number of keys of a part; fewer do not pay for a block

struct LaunchPlan {
  int heads, parts, page_shift;  // query heads per block, which share the loads of keys; parts of a row's keys; log2(page_tokens)
};

__device__ __forceinline__ bool is_idle(const PagedAttention& p, int64_t slot, int64_t written, int shift) {
  return written >> shift >= p.slot_pages || p.page_table[slot * p.slot_pages + (written >> shift)] < 0;
}

// Computes kGroup query heads over the keys of one slot. kLanes lanes hold one key.
template <typename T, bool kAligned, int kLanes, int kGroup>
struct KeyTile {
  static constexpr int kGroups = 32 / kLanes, kKeys = sizeof(T) == 2 && kGroup < 4 ? 8 : 4, kTile = kKeys * kGroups;
  const PagedAttention& p;
  const int64_t* table;
  int shift, group, column, count;  // log2(page_tokens); the lane's group; the lane holds elements [column, column + count) of a key
  int64_t stride, offset;           // elements between keys of a page; offset of the lane's elements in the key at index 0
  float q[kGroup][kVector];

  __device__ __forceinline__ KeyTile(const PagedAttention& params, int64_t row, int64_t slot, int head, int page_shift) : p(params) {
    const int lane = threadIdx.x % 32, kv_head = head / (p.heads / p.kv_heads);
    table = p.page_table + slot * p.slot_pages, shift = page_shift;
    group = lane / kLanes, column = lane % kLanes * kVector, count = min(max(p.head_dim - column, 0), kVector);
    stride = int64_t{p.kv_heads} * p.head_dim, offset = int64_t{kv_head} * p.head_dim + column;
    const T* query = static_cast<const T*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim + column;
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      Vector<T> unit;
      if (count != 0) unit.template load<kAligned>(query + int64_t{g} * p.head_dim, count);
#pragma unroll
      for (int c = 0; c < kVector; ++c) q[g][c] = count != 0 ? unit.get(c) * (p.scale * 1.44269504088896341F) : 0.0F;
    }
  }
  // Offset of the lane's elements of key i in the pool.
  __device__ __forceinline__ int64_t pool_offset(int64_t i) const {
    return ((table[i >> shift] << shift) + (i & ((int64_t{1} << shift) - 1))) * stride + offset;
  }
  __device__ __forceinline__ float score(int g, const Vector<T>& key) const {
    float s = 0;
    if (count != 0) {
#pragma unroll
      for (int c = 0; c < kVector; ++c) s = fmaf(q[g][c], key.get(c), s);
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) s += __shfl_xor_sync(~0U, s, distance);
    return s;
  }
  // Adds the new key to the sums, once per warp, and stores it in its page if `writes`.
  __device__ __forceinline__ void add_new_key(int64_t row, int64_t written, bool writes, Sums (&sums)[kGroup]) const {
    Vector<T> key, value;
    if (count != 0) {
      key.template load<kAligned>(static_cast<const T*>(p.k) + row * p.k_stride + offset, count);
      value.template load<kAligned>(static_cast<const T*>(p.v) + row * p.v_stride + offset, count);
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      const float s = score(g, key);
      if (group != 0) continue;
      sums[g].top = s;
      sums[g].add(s, value);
    }
    if (!writes || group != 0 || count == 0) return;
    const int64_t at = pool_offset(written);
    key.template store<kAligned>(static_cast<T*>(p.k_pages) + at, count);
    value.template store<kAligned>(static_cast<T*>(p.v_pages) + at, count);
  }
  // Adds keys base .. base + kTile, up to `end`.
  __device__ __forceinline__ void add_tile(int64_t base, int64_t end, Sums (&sums)[kGroup]) const {
    Vector<T> k[kKeys], v[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int64_t i = base + group + u * kGroups;
      if (count == 0 || i >= end) continue;
      const int64_t at = pool_offset(i);
      k[u].template load<kAligned>(static_cast<const T*>(p.k_pages) + at, count);
      v[u].template load<kAligned>(static_cast<const T*>(p.v_pages) + at, count);
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float scores[kKeys], top = sums[g].top;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        scores[u] = score(g, k[u]);
        if (base + group + u * kGroups < end) top = fmaxf(top, scores[u]);
      }
      sums[g].raise(top);
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        if (base + group + u * kGroups < end) sums[g].add(scores[u], v[u]);
      }
    }
  }
};

template <typename T, bool kAligned, int kLanes, int kGroup>
__global__ void __launch_bounds__(32 * kWarps)
    attend_pages(const __grid_constant__ PagedAttention p, const LaunchPlan plan, float* partial_sums) {
  extern __shared__ float shared[];  // [kGroup][kWarps][head_dim + 2]
  using Tile = KeyTile<T, kAligned, kLanes, kGroup>;
  const int64_t row = blockIdx.x, slot = p.slot[row], written = p.position[row];
  const int head = blockIdx.y * kGroup, part = blockIdx.z, warp = threadIdx.x / 32, width = p.head_dim + 2;
  Sums sums[kGroup];
  const Tile tile(p, row, slot, head, plan.page_shift);
  if (!is_idle(p, slot, written, plan.page_shift)) {
    const int64_t keys_per_part = (written + plan.parts - 1) / plan.parts,
                  length = max((keys_per_part + Tile::kTile - 1) / Tile::kTile * Tile::kTile, kMinKeys);
    const int64_t begin = part * length, end = min(written, begin + length);
    if (part == 0 && warp == 0) tile.add_new_key(row, written, head % (p.heads / p.kv_heads) == 0, sums);
    for (int64_t base = begin + warp * Tile::kTile; base < end; base += kWarps * Tile::kTile) tile.add_tile(base, end, sums);
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) store_partial_sums<kLanes>(sums[g], tile.column, tile.count, shared + (g * kWarps + warp) * width);
  __syncthreads();
  for (int g = warp; g < kGroup; g += kWarps) {
    const MergedSums merged(shared + g * kWarps * width, kWarps, width);
    const int64_t row_head = row * p.heads + head + g;
    float* partial = partial_sums + (row_head * plan.parts + part) * width;
    for (int d = threadIdx.x % 32; d < p.head_dim; d += 32) {
      const MergedSums::Value value = merged.at(d);
      if (plan.parts == 1) {
        static_cast<T*>(p.y)[row_head * p.head_dim + d] = from_float<T>(value.output());
      } else {
        partial[2 + d] = value.sum;
        if (d == 0) partial[0] = merged.top, partial[1] = value.total;
      }
    }
  }
}

// Each warp merges the partial sums of one head of one row into y.
template <typename T>
__global__ void merge_parts(const __grid_constant__ PagedAttention p, const LaunchPlan plan, const float* partial_sums) {
  const int64_t row = blockIdx.x, row_head = row * p.heads + blockIdx.y;
  const int width = p.head_dim + 2;
  const MergedSums merged(partial_sums + row_head * plan.parts * width, plan.parts, width);
  for (int d = threadIdx.x; d < p.head_dim; d += 32) static_cast<T*>(p.y)[row_head * p.head_dim + d] = from_float<T>(merged.at(d).output());
}

bool has_whole_vectors(const PagedAttention& p) {
  return p.head_dim % kVector == 0 && p.q_stride % kVector == 0 && p.k_stride % kVector == 0 && p.v_stride % kVector == 0 &&
         aligned16(p.q) && aligned16(p.k) && aligned16(p.v) && aligned16(p.k_pages) && aligned16(p.v_pages);
}

LaunchPlan make_plan(const PagedAttention& p) {
  const int queries = p.heads / p.kv_heads;
  LaunchPlan plan{!has_whole_vectors(p) ? 1 : queries % 4 == 0 ? 4 : queries % 2 == 0 ? 2 : 1, 1, 0};
  while (int64_t{1} << plan.page_shift < p.page_tokens) ++plan.page_shift;
  // About four blocks per multiprocessor, as long as the longest possible sequence has enough keys for them.
  const int64_t blocks = std::max<int64_t>(1, p.rows * (p.heads / plan.heads)), wanted = ceil_div(4 * int64_t{multiprocessors()}, blocks);
  const int64_t possible = ceil_div(std::min(p.slot_pages, p.pages) * p.page_tokens, kMinKeys);
  plan.parts = static_cast<int>(std::max<int64_t>(1, std::min({wanted, possible, int64_t{64}})));
  return plan;
}

template <typename T, bool kAligned, int kGroup>
auto* choose_lanes(int head_dim) {
  if (head_dim <= 4 * kVector) return attend_pages<T, kAligned, 4, kGroup>;
  if (head_dim <= 8 * kVector) return attend_pages<T, kAligned, 8, kGroup>;
  return head_dim <= 16 * kVector ? attend_pages<T, kAligned, 16, kGroup> : attend_pages<T, kAligned, 32, kGroup>;
}
template <typename T>
auto* choose(const PagedAttention& p, const LaunchPlan& plan) {
  if (!has_whole_vectors(p)) return choose_lanes<T, false, 1>(p.head_dim);
  if (plan.heads == 4) return choose_lanes<T, true, 4>(p.head_dim);
  return plan.heads == 2 ? choose_lanes<T, true, 2>(p.head_dim) : choose_lanes<T, true, 1>(p.head_dim);
}

template <typename T>
Status launch_step(const PagedAttention& p, float* scratch, cudaStream_t queue) {
  const LaunchPlan plan = make_plan(p);
  const auto rows = static_cast<unsigned>(p.rows), heads = static_cast<unsigned>(p.heads);
  const dim3 grid(rows, heads / static_cast<unsigned>(plan.heads), static_cast<unsigned>(plan.parts));
  const int bytes = plan.heads * kWarps * (p.head_dim + 2) * 4;
  choose<T>(p, plan)<<<grid, 32 * kWarps, static_cast<size_t>(bytes), queue>>>(p, plan, scratch);
  if (plan.parts > 1) merge_parts<T><<<dim3(rows, heads), 32, 0, queue>>>(p, plan, scratch);
  return launched();
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttention& p) {
  const LaunchPlan plan = make_plan(p);
  return plan.parts == 1 ? 0 : p.rows * p.heads * plan.parts * (p.head_dim + 2) * 4;
}

Status paged_attention_step(const PagedAttention& p, void* scratch, Queue queue) {
  if (p.rows == 0) return {};
  if (p.head_dim > 32 * kVector) return {"paged_attention: head_dim is larger than 256"};
  auto* sums = static_cast<float*>(scratch);
  return p.dtype == DType::bf16 ? launch_step<bf16>(p, sums, stream_of(queue)) : launch_step<float>(p, sums, stream_of(queue));
}

namespace {
const DefineLaunchers<PagedAttentionLaunchers> kLaunchers(Device::cuda, {.scratch = paged_attention_scratch, .step = paged_attention_step});
}

}  // namespace based::kernels::cuda
